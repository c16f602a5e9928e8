"""Converts client events to a chat answer: the chunks of a stream, or the completion object.

    stream  := choice+ usage? [DONE]                       (choices can be interleaved)
    choice  := role (content | reasoning | refusal | call)* finish
    call    := {index, id, type, name, arguments: ""} {index, arguments}*
    failure := {"error": …}, instead of everything that would follow

Rules, and the clients that need them:

 1. ``id``, ``created`` and ``model`` are the same in every chunk. ``finish_reason`` is always present, and null until
    the end of the choice.
 2. The role, and each call's ID, type and name, are sent only once, because the OpenAI SDK, pydantic-ai and Obsidian
    concatenate repeated values.
 3. Arguments are sent as fragments in ``function``. Cumulative fragments, or fragments in any other field, break every
    streaming client.
 4. The role comes before, or with, the first other delta (LangChain). The stream's first chunk belongs to choice 0,
    regardless of which choice has text first (the OpenAI SDK indexes a list).
 5. Every call has its own ``index``, because every client merges two calls at one index into a single broken call.
 6. ``usage`` is sent only if it was requested. It is in a final chunk without choices, and null in all other chunks.
 7. A mid-stream failure is a bare error object, which is not followed by a finish reason or ``[DONE]``.
 8. The reasoning field has DeepSeek's name, which most clients support.
 9. An answer that begins with a call has ``content: null`` in its first chunk, like a non-streamed answer. An answer
    that begins with text has ``content: ""`` there.

Nearly all frames of a stream contain a delta. For speed, these frames are built from a head and a tail that are
serialized only once per answer.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Literal, override

from toolsim.core.errors import ApiError
from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    Failed,
    KeepAlive,
    Opened,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
)
from toolsim.core.plan import AnswerForm
from toolsim.wire.api import Writer
from toolsim.wire.ids import chat_call_id
from toolsim.wire.json_codec import dump, dump_string
from toolsim.wire.sse import encode


@dataclass(slots=True)
class _Choice:
    """The content of one choice so far, and the arguments of its open call."""

    content: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)


class ChatWriter(Writer):
    """Converts client events to one chat answer."""

    def __init__(self, form: AnswerForm) -> None:
        super().__init__(form)
        self._stream = form.stream
        self._head: dict[str, Any] = {}
        self._frame_head = ""
        self._frame_tail = ""
        self._choices: dict[int, _Choice] = {}
        self._frames: list[bytes] = []

    @override
    def write(self, event: ClientEvent) -> list[bytes]:
        match event:
            case TextDelta():
                self._keep(self._choice(event.choice).content, event.text)
                self._delta(event.choice, f'{{"content":{dump_string(event.text)}}}')
            case CallDelta():
                self._arguments(event)
            case CallStarted():
                self._call(event)
            case CallEnded():
                self._end_call(event)
            case ReasoningDelta():
                self._keep(self._choice(event.choice).reasoning, event.text)
                self._delta(event.choice, f'{{"reasoning_content":{dump_string(event.text)}}}')
            case RefusalDelta():
                self._keep(self._choice(event.choice).refusal, event.text)
                self._delta(event.choice, f'{{"refusal":{dump_string(event.text)}}}')
            case Opened():
                self._start(event)
            case KeepAlive():
                self._keep_alive()
            case Ended():
                self._end(event)
            case Failed():
                self._start(Opened())
                self.error = event.error
                if self._stream:
                    self._frames.append(self.error_event(event.error))
            case _:
                pass  # A chat message cannot contain the items of built-in tools.
        frames, self._frames = self._frames, []
        return frames

    @override
    def error_event(self, error: ApiError) -> bytes:
        return encode(dump({"error": error.body()}))

    def _keep_alive(self) -> None:
        if self._head:
            # The first chunk of a stream belongs to choice 0 (rule 4).
            self._choice(0, "null")
            self._delta(0, "{}")
        elif self._stream:
            # A chunk cannot be sent yet, because its model and creation time are still unknown.
            self._frames.append(b": keepalive\n\n")

    def _start(self, event: Opened) -> None:
        if self._head:
            return
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(15)[:29]}",
            "object": "chat.completion.chunk" if self._stream else "chat.completion",
            "created": event.created_at if event.created_at is not None else int(time.time()),
            "model": event.model or self._form.model,
        }
        if event.service_tier is not None:
            self._head["service_tier"] = event.service_tier
        if event.system_fingerprint is not None:
            self._head["system_fingerprint"] = event.system_fingerprint
        self._frame_head = "data: " + dump(self._head)[:-1] + ',"choices":[{"index":'
        self._frame_tail = ',"logprobs":null,"finish_reason":null}]' + self._no_usage() + "}\n\n"

    def _no_usage(self) -> str:
        return ',"usage":null' if self._form.include_usage else ""

    def _choice(self, index: int, content: Literal['""', "null"] = '""') -> _Choice:
        """Return a choice's state. For a new choice, first send its role in a chunk whose content is ``content``."""
        choice = self._choices.get(index)
        if choice is None:
            self._start(Opened())
            # The first chunk of a stream belongs to choice 0, even if another choice has text first (rule 4).
            if index and 0 not in self._choices:
                self._choice(0)
            choice = self._choices[index] = _Choice()
            self._delta(index, f'{{"role":"assistant","content":{content},"refusal":null}}')
        return choice

    def _keep(self, texts: list[str], text: str) -> None:
        # Text can have any length, so it is not stored if it has been streamed.
        if not self._stream:
            texts.append(text)

    def _delta(self, index: int, delta: str) -> None:
        if self._stream:
            self._frames.append(f'{self._frame_head}{index},"delta":{delta}{self._frame_tail}'.encode())

    def _call(self, event: CallStarted) -> None:
        choice = self._choice(event.choice, "null")
        name = chat_call_id(event.kind, event.number)
        if self._form.legacy_functions:
            choice.calls.append({"name": event.name, "arguments": ""})
            self._delta(event.choice, dump({"function_call": choice.calls[-1]}))
            return
        call: dict[str, Any] = {"id": name, "type": event.kind}
        if event.kind == "custom":
            call["custom"] = {"name": event.name, "input": ""}
        else:
            call["function"] = {"name": event.name, "arguments": ""}
        choice.calls.append(call)
        self._delta(event.choice, dump({"tool_calls": [{"index": len(choice.calls) - 1, **call}]}))

    def _arguments(self, event: CallDelta) -> None:
        choice = self._choices[event.choice]
        choice.arguments.append(event.text)
        if not self._stream:
            return
        opening, closing = self._around_arguments(choice)
        self._delta(event.choice, f"{opening}{dump_string(event.text)}{closing}")

    def _around_arguments(self, choice: _Choice) -> tuple[str, str]:
        """Return the parts of a delta before and after a fragment of the last call's arguments."""
        if self._form.legacy_functions:
            return '{"function_call":{"arguments":', "}}"
        key, value = ("custom", "input") if "custom" in choice.calls[-1] else ("function", "arguments")
        return f'{{"tool_calls":[{{"index":{len(choice.calls) - 1},"{key}":{{"{value}":', "}}]}"

    def _end_call(self, event: CallEnded) -> None:
        choice = self._choices[event.choice]
        call, arguments = choice.calls[-1], "".join(choice.arguments)
        choice.arguments = []
        if "custom" in call:
            call["custom"]["input"] = arguments
        else:
            call.get("function", call)["arguments"] = arguments

    def _end(self, event: Ended) -> None:
        for index in sorted({0, *event.reasons, *self._choices}):
            self._choice(index)
        reasons: dict[int, str] = {index: event.reasons.get(index, "stop") for index in sorted(self._choices)}
        if self._form.legacy_functions:
            reasons = {i: "function_call" if reason == "tool_calls" else reason for i, reason in reasons.items()}
        usage = _usage(event.usage)
        if not self._stream:
            choices = [
                {
                    "index": index,
                    "message": self._message(choice, filtered=reasons[index] == "content_filter"),
                    "logprobs": None,
                    "finish_reason": reasons[index],
                }
                for index, choice in sorted(self._choices.items())
            ]
            self.body = {**self._head, "choices": choices, **({"usage": usage} if usage else {})}
            return
        for index, reason in reasons.items():
            end = f'{index},"delta":{{}},"logprobs":null,"finish_reason":"{reason}"}}]{self._no_usage()}}}\n\n'
            self._frames.append(f"{self._frame_head}{end}".encode())
        if self._form.include_usage and usage:
            self._frames.append(encode(dump({**self._head, "choices": [], "usage": usage})))
        self._frames.append(encode("[DONE]"))

    def _message(self, choice: _Choice, *, filtered: bool) -> dict[str, Any]:
        content = "".join(choice.content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not (choice.calls or filtered) else None,
            "refusal": "".join(choice.refusal) or None,
        }
        if choice.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        if choice.calls and self._form.legacy_functions:
            message["function_call"] = choice.calls[0]
        elif choice.calls:
            message["tool_calls"] = choice.calls
        return message


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
