"""Converts client events to a Responses answer: the frames of a stream, or the Response object.

    answer    := created queued? in_progress item* (completed | incomplete | error failed) [DONE]
    item      := message | reasoning | call | hosted
    message   := item.added (part.added text.delta* text.done part.done)+ item.done
    reasoning := item.added (part.added delta* done part.done)+ item.done
    call      := item.added arguments.delta* arguments.done item.done
    hosted    := item.added event* item.done          also calls to shell, apply_patch and similar tools

A ``keepalive`` can occur between any two events after ``in_progress``.

Rules, and the clients that need them (each client would otherwise raise an error or lose the call):

 1. Frames are complete, name their event, and are numbered from 0 (``event_stream``).
 2. An item's index and ID are assigned when it is announced, and never change; no index is skipped (openai-node). The
    final object is built from the same dicts that were announced, which are extended in place.
 3. A call is announced with empty arguments. The arguments follow as deltas, because LangChain reads only the deltas.
    If the announcement also contained them, LangChain and pydantic-ai would double them. ``output_item.done`` contains
    the complete arguments, because the AI SDK and Codex read only this event.
 4. A call has an ``id``, a ``call_id`` and a ``status`` (AI SDK, pydantic-ai), and the ``namespace`` in which its tool
    was declared (Codex).
 5. ``output`` is empty in ``created`` and ``in_progress``, and ``usage`` is null until the end (both OpenAI SDKs).
 6. A failure is an ``error`` event, which contains a flat and a nested error, followed by ``response.failed``. Each
    client shows only one of these three errors. ``response.failed`` has a code from OpenAI's fixed set; Codex repeats
    the request after most of these codes.
 7. Text after a call is a new message, with the next index.
 8. Codex ignores comments as keep-alives, but accepts a ``keepalive`` event. It is the only event type outside the API
    that no client rejects.
 9. toolsim renumbers the events of a hosted tool. Other items can occur between them.
10. The ``phase`` of a message is set when the message ends. It is ``commentary`` if more items follow or calls have no
    output yet, and ``final_answer`` otherwise. A truncated message has no phase. Codex displays the phases differently.
11. A call to a tool that declares ``encrypted`` parameters lists the parameters that are encrypted. The list is empty
    if the model wrote the values. Codex would otherwise mistake plain text for ciphertext, and pass it as such to its
    other agents.
12. ``[DONE]`` follows the terminal event, because the Open Responses specification requires it. All other clients
    accept it.
13. If a text names pages that the proxy's searches found, annotations are added at the end of the text.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from io import StringIO
from typing import Any, Literal, override

from toolsim.core.errors import ApiError
from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    Failed,
    HostedEnded,
    HostedProgress,
    HostedStarted,
    ItemStatus,
    KeepAlive,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
)
from toolsim.core.plan import AnswerForm
from toolsim.wire.api import Writer
from toolsim.wire.content import is_ciphertext
from toolsim.wire.errors import error_fields
from toolsim.wire.ids import responses_call_id
from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.json_fields import string
from toolsim.wire.local_tools import LOCAL_TOOLS, local_item
from toolsim.wire.responses.event_stream import EventStream
from toolsim.wire.responses.shapes import DELTA_OF, PART_OF, failure, part_of, response_json, usage_of
from toolsim.wire.web_search import citations, titles_of


class ResponsesWriter(Writer):
    """Converts client events to one Responses answer."""

    def __init__(self, form: AnswerForm) -> None:
        super().__init__(form)
        self._events = EventStream(is_on=form.stream)
        self._id = ""
        self._is_started = False
        self._created_at = 0
        self._service_tier: str | None = None
        self._output: list[dict[str, Any]] = []
        # Finished items of a stream as JSON, by their output index.
        self._written: dict[int, str] = {}
        # State for closing the open item: the kind of the item (or of its open content part), and the text so far.
        self._open: Literal["", "text", "refusal", "summary", "reasoning_text", "function", "custom", "local"] = ""
        self._local: CallStarted | None = None
        # Encrypted parameters of the tool that is being called.
        self._encrypted: tuple[str, ...] = ()
        # Titles of the pages that a search has found, keyed by address (rule 13 in the module docstring).
        self._pages: dict[str, str] = {}
        # Maps the keys of announced items of hosted tools to the items' output indexes.
        self._hosted_at: dict[str, int] = {}
        # The text is collected in a StringIO, because a list of deltas would take many times as much memory.
        self._text = StringIO(newline="\n")

    @override
    def write(self, event: ClientEvent) -> list[bytes]:
        match event:
            case TextDelta():
                self._part_delta("text", event.text)
            case CallDelta():
                self._delta(event.text)
            case CallStarted():
                self._call(event)
            case CallEnded():
                self._close(event.status)
            case ReasoningDelta():
                self._part_delta(PART_OF[event.kind], event.text)
            case RefusalDelta():
                self._part_delta("refusal", event.text)
            case Opened():
                self._start(event)
            case PassThrough():
                self._pass(event.item)
            case HostedStarted() | HostedProgress() | HostedEnded():
                self._hosted(event)
            case KeepAlive():
                self._start(Opened())
                self._events.emit("keepalive", {})
            case Ended():
                self._end(event)
            case Failed():
                self._fail(event.error)
        return self._events.take()

    @override
    def error_event(self, error: ApiError) -> bytes:
        self._events.emit("error", error_fields(error))
        return b"".join(self._events.take())

    # -- the response

    def queue(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return a Response with the status ``queued``, and the frames that announce it."""
        self._name(Opened())
        response = self._response("queued", [])
        self._events.emit("response.created", {"response": response})
        self._events.emit("response.queued", {"response": response})
        return response, self._events.take()

    def _start(self, event: Opened) -> None:
        if self._is_started:
            return
        self._is_started, self._service_tier, was_queued = True, event.service_tier, bool(self._id)
        if not was_queued:
            self._name(event)
        if self._events.is_on:
            response = self._response("in_progress", [])
            for kind in ("in_progress",) if was_queued else ("created", "in_progress"):
                self._events.emit(f"response.{kind}", {"response": response})

    def _name(self, event: Opened) -> None:
        self._id = self._form.id or event.response_id or f"resp_{secrets.token_hex(24)}"
        self._created_at = event.created_at if event.created_at is not None else int(time.time())

    def _end(self, event: Ended) -> None:
        self._start(Opened())
        reason = event.reasons.get(0, "stop")
        cut = reason in ("length", "content_filter")
        self._close("incomplete" if cut else "completed", "final_answer" if reason == "stop" else "commentary")
        self._close_hosted()
        status = "incomplete" if cut else "completed"
        details = {"reason": "max_output_tokens" if reason == "length" else reason} if cut else None
        response = self._response(status, self._output, usage=event.usage, incomplete_details=details)
        self._done(f"response.{status}", response)

    def _fail(self, error: ApiError) -> None:
        self._start(Opened())
        self.error = error
        self._close("incomplete")
        self._close_hosted()
        # The flat error, the nested error and ``response.failed`` are all sent, because each client shows only one of
        # them (rule 6).
        self._events.emit("error", error_fields(error))
        response = self._response("failed", self._output, error=failure(error))
        self._done("response.failed", response)

    def _done(self, event: str, response: dict[str, Any]) -> None:
        self._events.emit(event, {}, f',"response":{response_json(response, self._written)}')
        self.body = response
        self._events.done()

    def _response(
        self,
        status: str,
        output: list[dict[str, Any]],
        *,
        usage: Usage | None = None,
        error: Mapping[str, Any] | None = None,
        incomplete_details: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        response = {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            **self._form.echo,
            "model": self._form.model,
            "output": output,
            "error": error,
            "incomplete_details": incomplete_details,
            "completed_at": int(time.time()) if status == "completed" else None,
            "usage": usage_of(usage),
        }
        if self._service_tier:
            response["service_tier"] = self._service_tier
        return response

    # -- items

    def _part_delta(self, kind: Literal["text", "refusal", "summary", "reasoning_text"], text: str) -> None:
        if self._open != kind:
            self._open_part(kind)
        self._delta(text)

    def _delta(self, text: str) -> None:
        self._text.write(text)
        if self._open != "local":
            self._events.delta(text)

    def _open_part(self, kind: Literal["text", "refusal", "summary", "reasoning_text"]) -> None:
        """Start a content part. Text or a refusal continues an open message. Otherwise, the part starts a new item."""
        self._start(Opened())
        part = part_of(kind, "")
        if kind in ("text", "refusal") and self._open in ("text", "refusal"):
            self._close_part()
        else:
            self._close("completed")
            if kind in ("text", "refusal"):
                name, message = f"msg_{secrets.token_hex(24)}", {"role": "assistant", "content": []}
                self._add({"id": name, "type": "message", "status": "in_progress", **message})
            else:
                name = f"rs_{secrets.token_hex(24)}"
                self._add({"id": name, "type": "reasoning", "status": "in_progress", "summary": [], "content": []})
        self._open = kind
        if kind == "summary":
            self._events.emit("response.reasoning_summary_part.added", {**self._where(), "part": part})
            self._start_deltas("response.reasoning_summary_text.delta")
        else:
            self._events.emit("response.content_part.added", {**self._where(), "part": part})
            more = ',"logprobs":[]' if kind == "text" else ""
            self._start_deltas(f"response.{DELTA_OF[kind]}.delta", more)

    def _call(self, event: CallStarted) -> None:
        self._start(Opened())
        self._close("completed")
        if event.kind in LOCAL_TOOLS:
            # The item of a local call cannot represent incomplete arguments, so it is announced when they are complete.
            self._open, self._local, self._text = "local", event, StringIO(newline="\n")
            return
        name, own = self._call_ids(event)
        is_custom = event.kind == "custom"
        kind, text = ("custom_tool_call", "input") if is_custom else ("function_call", "arguments")
        item: dict[str, Any] = {"id": own, "type": kind, "status": "in_progress", "call_id": name, "name": event.name}
        item[text] = ""
        if event.namespace is not None:
            item["namespace"] = event.namespace
        self._add(item)
        self._open, self._encrypted = "custom" if is_custom else "function", event.encrypted
        self._start_deltas(f"response.{kind}_{text}.delta")

    def _call_ids(self, event: CallStarted) -> tuple[str, str]:
        """Return the ID of a call and the ID of its item. If the answer is stored, the item's ID is globally unique."""
        name = responses_call_id(event.kind, event.number)
        return name, f"{name.partition('_')[0]}_{secrets.token_hex(24)}" if self._form.id else name

    def _pass(self, item: dict[str, Any]) -> None:
        self._start(Opened())
        self._close("completed")
        self._add(item)
        self._end_item(len(self._output) - 1)

    def _hosted(self, event: HostedStarted | HostedProgress | HostedEnded) -> None:
        """Forward an event of a hosted tool, unless it belongs to an item that was never announced."""
        if isinstance(event, HostedStarted):
            self._start(Opened())
            self._close("completed")
            self._hosted_at[event.key] = len(self._output)
            self._add(event.item)
        elif isinstance(event, HostedProgress) and not event.key:
            self._start(Opened())
            self._events.emit(event.type, event.fields)
        elif (at := self._hosted_at.get(event.key)) is None:
            return
        elif isinstance(event, HostedProgress):
            where = {"item_id": self._output[at].get("id"), "output_index": at}
            self._events.emit(event.type, {**where, **event.fields})
        else:
            del self._hosted_at[event.key]
            self._output[at] = event.item
            self._pages |= titles_of(event.item)
            self._end_item(at)

    def _close_hosted(self) -> None:
        for key, at in list(self._hosted_at.items()):
            item = self._output[at]
            self._hosted(HostedEnded(key, {**item, "status": "incomplete"} if "status" in item else item))

    def _add(self, item: dict[str, Any]) -> None:
        self._output.append(item)
        # The frame is serialized immediately, so it does not change when the item is extended later.
        self._events.emit("response.output_item.added", {"output_index": len(self._output) - 1, "item": item})

    def _start_deltas(self, event: str, more: str = "") -> None:
        self._events.start_deltas(event, self._where(), more)
        self._text = StringIO(newline="\n")

    def _where(self) -> dict[str, Any]:
        where = {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}
        if self._open == "summary":
            return {**where, "summary_index": 0}
        if self._open in ("text", "refusal", "reasoning_text"):
            return {**where, "content_index": len(self._output[-1]["content"])}
        return where

    def _close_part(self) -> None:
        kind, where, text = self._open, self._where(), self._text.getvalue()
        assert kind in ("text", "refusal", "summary", "reasoning_text")
        part = part_of(kind, text)
        if kind == "summary":
            self._events.emit("response.reasoning_summary_text.done", {**where, "text": text})
            self._events.emit("response.reasoning_summary_part.done", {**where, "part": part})
            self._output[-1]["summary"].append(part)
            return
        if kind == "text" and self._pages:
            part["annotations"] = citations(text, self._pages)
            for index, note in enumerate(part["annotations"]):
                added = {**where, "annotation_index": index, "annotation": note}
                self._events.emit("response.output_text.annotation.added", added)
        value = {"refusal": text} if kind == "refusal" else {"text": text}
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "text" else {}
        self._events.emit(f"response.{DELTA_OF[kind]}.done", {**where, **value, **logprobs})
        self._events.emit("response.content_part.done", {**where, "part": part})
        self._output[-1]["content"].append(part)

    def _close(self, status: ItemStatus, phase: Literal["commentary", "final_answer"] = "commentary") -> None:
        """Close the open item, if any. ``phase`` is the phase of a message that is complete."""
        item, where, text = self._output[-1] if self._output else {}, {}, self._text.getvalue()
        match self._open:
            case "":
                return
            case "local":
                assert self._local is not None
                call, self._open = self._local, ""
                name, own = self._call_ids(call)
                fields = {"id": own, "type": f"{call.kind}_call", "call_id": name, "status": status}
                self._pass({**fields, **local_item(call.kind, text)})
                return
            case "function":
                where = self._where()
                item["arguments"] = text
                if self._encrypted:
                    values = parse_object(text.encode()) or {}
                    item["encrypted_function_args"] = [
                        key for key in self._encrypted if is_ciphertext(string(values.get(key)))
                    ]
                done = {**where, "name": item["name"], "arguments": text}
                self._events.emit("response.function_call_arguments.done", done)
            case "custom":
                where = self._where()
                item["input"] = text
                self._events.emit("response.custom_tool_call_input.done", {**where, "input": text})
            case _:
                self._close_part()
        self._open = ""
        self._text = StringIO(newline="\n")
        item["status"] = status
        if item["type"] == "message" and status == "completed":
            item["phase"] = phase
        self._end_item(len(self._output) - 1)

    def _end_item(self, index: int) -> None:
        if self._events.is_on:
            self._written[index] = item = dump(self._output[index])
            self._events.emit("response.output_item.done", {"output_index": index}, f',"item":{item}')
