"""Converts client events to a Messages answer: the events of a stream, or the message object.

    stream   := message_start block* message_delta message_stop          (ping anywhere)
    block    := content_block_start content_block_delta* content_block_stop
    failure  := error, instead of everything that would follow

Rules, and the clients that need them:

 1. Each frame has an ``event:`` line with its type; without it, Claude Code repeats the request without streaming.
 2. One block is open at a time, and is stopped before the next block starts. The ``index`` of the blocks counts up from
    0, because the SDKs add each delta to the block with its index.
 3. The block of a call starts with ``input: {}``, and its arguments follow as ``input_json_delta``, because Claude Code
    ignores an input in the start event. The SDKs join the fragments.
 4. ``message_start`` has ``usage`` because the SDKs require it. The token counts are known only when the backend has
    finished, so all counts, including input tokens, are in ``message_delta``.
 5. The input tokens of this API do not include cached tokens; the input tokens of every other API do.
 6. ``message_stop`` is the only terminator; ``[DONE]`` does not exist.
 7. An answer that was truncated within a call has the stop reason ``max_tokens``. Clients then do not run the call.
 8. Reasoning is a ``thinking`` block. A backend of this API signs it, which ends the block, or encrypts it completely.
    Reasoning from other backends has an empty signature, which clients echo and no server can verify.
 9. Content that no block of this API can represent is dropped (the items of tools that a backend runs) or becomes text
    (a refusal, with the stop reason ``refusal``).
10. The blocks of tools that the proxy runs (``hosted.py``) are sent complete, rather than in deltas. Web searches are
    counted in ``usage``. If a text names pages that a search found, citations are added at the end of the text.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Literal, override

from toolsim.core.errors import ApiError
from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    EndReason,
    Failed,
    HostedProgress,
    KeepAlive,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolKind,
    Usage,
)
from toolsim.core.plan import AnswerForm
from toolsim.wire.api import Writer
from toolsim.wire.json_codec import as_read, dump, dump_as_read, dump_string, finite, parse_object
from toolsim.wire.json_fields import string
from toolsim.wire.messages.hosted import BLOCKS, citations_of, pages_of
from toolsim.wire.messages.reader import PROOF
from toolsim.wire.messages.shape import error_body
from toolsim.wire.sse import encode
from toolsim.wire.web_search import SearchResult

_REASONS: Mapping[EndReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
    "tool_calls": "tool_use",
}

Kind = Literal["", "text", "thinking", "redacted_thinking", "tool_use"]

# Maps the kind of the open block to the beginning and the end of its deltas, which enclose the text.
_DELTAS: Mapping[Kind, tuple[str, str]] = {
    "text": ('{"type":"text_delta","text":', "}}"),
    "thinking": ('{"type":"thinking_delta","thinking":', "}}"),
    "tool_use": ('{"type":"input_json_delta","partial_json":', "}}"),
}


def call_id(kind: ToolKind, number: int) -> str:
    """Return the ID of a call in the Messages API."""
    return f"toolu_{number:03}"


class MessagesWriter(Writer):
    """Converts client events to one Messages answer."""

    def __init__(self, form: AnswerForm) -> None:
        super().__init__(form)
        self._message: dict[str, Any] = {}
        """Message so far; {} until the answer has started."""
        self._open: Kind = ""
        """Kind of the open block; "" if no block is open."""
        self._texts: list[str] = []
        """Deltas of the open block. For a stream, they are stored only if the text might need citations."""
        self._index = -1
        """Index of the last block."""
        self._refused = False
        self._pages: dict[str, SearchResult] = {}
        """Pages that web searches have found, keyed by address."""
        self._searches = 0
        """Number of web searches so far."""
        self._cut_call = False
        self._frames: list[bytes] = []

    @override
    def write(self, event: ClientEvent) -> list[bytes]:
        match event:
            case TextDelta():
                self._say("text", event.text)
            case ReasoningDelta():
                self._say("thinking", event.text)
            case RefusalDelta():
                # A refusal becomes text with the stop reason ``refusal`` (rule 9).
                self._refused = True
                self._say("text", event.text)
            case CallStarted():
                toolset = {"toolset_name": event.namespace} if event.namespace is not None else {}
                self._begin("tool_use", id=call_id(event.kind, event.number), name=event.name, input={}, **toolset)
            case CallDelta():
                self._delta(event.text)
            case CallEnded():
                self._cut_call = self._cut_call or event.status == "incomplete"
                self._stop()
            case Opened():
                self._start(event)
            case KeepAlive():
                if self._form.stream:
                    self._frames.append(encode('{"type":"ping"}', "ping"))
            case PassThrough(item=block) if string(block.get("type")) in BLOCKS:
                self._whole(block)
            case HostedProgress(key=key) if key == PROOF:
                self._prove(event.type, event.fields)
            case Ended():
                self._end(event)
            case Failed():
                self.error = event.error
                if self._form.stream:
                    self._frames.append(self.error_event(event.error))
            case _:
                pass  # No block of this API can represent other events (rule 9).
        frames, self._frames = self._frames, []
        return frames

    @override
    def error_event(self, error: ApiError) -> bytes:
        return encode(dump(error_body(error)), "error")

    @override
    def whole(self) -> bytes:
        return dump_as_read(self.body if self.error is None else error_body(self.error)).encode()

    def _start(self, event: Opened) -> None:
        if self._message:
            return
        self._message = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": event.model or self._form.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            # The SDKs require ``usage`` here, although the counts are unknown until the end (rule 4).
            "usage": _usage(None),
        }
        self._frame("message_start", {"message": self._message})

    def _say(self, kind: Literal["text", "thinking"], text: str) -> None:
        if self._open != kind:
            more = {"signature": ""} if kind == "thinking" else {}
            self._begin(kind, **{kind: ""}, **more)
        self._delta(text)

    def _prove(self, kind: str, fields: dict[str, Any]) -> None:
        """Write a signature or encrypted reasoning (rule 8 in the module docstring). If no reasoning block is open, a
        new block is started.
        """
        if kind == "redacted_thinking":
            self._begin("redacted_thinking", **fields)
        else:
            if self._open != "thinking":
                self._begin("thinking", thinking="", signature="")
            if self._form.stream:
                self._frame("content_block_delta", {"index": self._index, "delta": {"type": kind, **fields}})
            else:
                self._message["content"][-1] |= fields
        self._stop()

    def _begin(self, kind: Kind, **fields: Any) -> None:
        """End the open block and start a new one (rule 2 in the module docstring)."""
        self._start(Opened())
        self._stop()
        self._open = kind
        self._index += 1
        block = {"type": kind, **fields}
        self._message["content"].append(block)
        self._frame("content_block_start", {"index": self._index, "content_block": block})

    def _whole(self, block: dict[str, Any]) -> None:
        """Write a complete block. In a stream, the input of a call is sent as a delta (rule 3 in
        the module docstring).
        """
        self._start(Opened())
        self._stop()
        self._index += 1
        self._message["content"].append(block)
        self._pages |= pages_of(block)
        self._searches += block["type"] == "server_tool_use" and block["name"] == "web_search"
        where = {"index": self._index}
        if "input" in block:
            self._frame("content_block_start", {**where, "content_block": {**block, "input": {}}})
            delta = {"type": "input_json_delta", "partial_json": dump(block["input"])}
            self._frame("content_block_delta", {**where, "delta": delta})
        else:
            self._frame("content_block_start", {**where, "content_block": block})
        self._frame("content_block_stop", where)

    def _delta(self, text: str) -> None:
        if not self._form.stream:
            self._texts.append(text)
            return
        # Nearly all frames of an answer are deltas. Formatting a delta by hand takes only a third of the time that
        # ``dump`` would take.
        if self._pages and self._open == "text":
            self._texts.append(text)
        before, after = _DELTAS[self._open]
        head = f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{self._index},"delta":'
        self._frames.append(f"{head}{before}{dump_string(text)}{after}\n\n".encode())

    def _stop(self) -> None:
        if not self._open:
            return
        if self._open == "text" and self._pages:
            self._cite("".join(self._texts))
        if not self._form.stream:
            block = self._message["content"][-1]
            if self._open == "tool_use":
                block["input"] = _input("".join(self._texts))
            elif self._open != "redacted_thinking":
                block[self._open] = "".join(self._texts)
        self._frame("content_block_stop", {"index": self._index})
        self._open = ""
        self._texts = []

    def _cite(self, text: str) -> None:
        found = citations_of(text, self._pages)
        if found and not self._form.stream:
            self._message["content"][-1]["citations"] = found
        for citation in found:
            delta = {"type": "citations_delta", "citation": citation}
            self._frame("content_block_delta", {"index": self._index, "delta": delta})

    def _end(self, event: Ended) -> None:
        self._start(Opened())
        self._stop()
        reason = _REASONS[event.reasons.get(0, "stop")]
        if self._cut_call:
            # Clients must not run a truncated call (rule 7).
            reason = "max_tokens"
        elif self._refused and reason == "end_turn":
            reason = "refusal"
        usage: dict[str, Any] = _usage(event.usage)
        if self._searches:
            usage["server_tool_use"] = {"web_search_requests": self._searches, "web_fetch_requests": 0}
        self._frame("message_delta", {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage})
        self._frame("message_stop", {})
        if not self._form.stream:
            self.body = {**self._message, "stop_reason": reason, "usage": usage}

    def _frame(self, kind: str, fields: dict[str, Any]) -> None:
        if self._form.stream:
            self._frames.append(encode(dump({"type": kind, **fields}), kind))


def _usage(usage: Usage | None) -> dict[str, int]:
    """Return the token counts. The API requires all counts, so an unknown count is 0 (rules 4 and 5 in the module
    docstring).
    """
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    counts = {"input_tokens": usage.input_tokens - usage.cached_tokens, "output_tokens": usage.output_tokens}
    return counts | ({"cache_read_input_tokens": usage.cached_tokens} if usage.cached_tokens else {})


def _input(arguments: str) -> Any:
    """Return a call's arguments as the object that a non-streamed answer contains. Arguments that are not a JSON object
    become the text of a single field.
    """
    data = (arguments or "{}").encode("utf-8", "surrogatepass")
    value = parse_object(data, parse_float=as_read, parse_int=as_read, parse_constant=finite)
    return {"arguments": arguments} if value is None else value
