"""A chat backend's answer, streamed or whole, as backend events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolsimlib.errors import ApiError
from toolsimlib.events import (
    BackendEvent,
    Closed,
    Counted,
    Failed,
    Finished,
    FinishReason,
    Opened,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    TextDelta,
    ToolKind,
    Usage,
)
from toolsimlib.wire.errors import no_answer, read_error
from toolsimlib.wire.lenient import count, json_text, mapping, mappings, seconds, string
from toolsimlib.wire.sse import ServerSentEvent


class ChatReader:
    """Reads one answer. Whatever the backend sends, it raises nothing.

    The terminator is ``[DONE]``; a stream that ends without it is whole if every choice has said why it ended, since
    many servers leave ``[DONE]`` out.
    """

    def __init__(self) -> None:
        self._opened = False
        self._closed = False
        # By choice: whether it has ended, and its structured calls so far, by index, which come in fragments. Several
        # at one index: some backends call every call of an answer the first.
        self._ended: dict[int, bool] = {}
        self._calls: dict[int, dict[int, list[_CallParts]]] = {}

    def event(self, sse: ServerSentEvent) -> list[BackendEvent]:
        """Return what one chunk of the stream says. What comes behind ``[DONE]`` or an error says nothing."""
        if self._closed:
            return []
        if sse.data == "[DONE]":
            self._closed = True
            return [*self._flush(), Closed()]
        try:
            chunk = json.loads(sse.data)
        except (ValueError, RecursionError):
            if not sse.whole:
                return []
            return self._fail(
                ApiError("The backend sent a chunk that is not JSON.", code="backend_bad_event", status=502)
            )
        if not isinstance(chunk, dict):
            return []
        if chunk.get("error"):
            return self._fail(read_error(chunk["error"]))
        bare = "choices" not in chunk and (string(chunk.get("message")) or string(chunk.get("detail")))
        if sse.event == "error" or bare:
            return self._fail(read_error(chunk))
        events = self._open(chunk)
        for choice in mappings(chunk.get("choices")):
            events += self._choice(choice, mapping(choice.get("delta")))
            if self._closed:
                return events
        return events + _counted(chunk)

    def whole(self, body: Mapping[str, Any]) -> list[BackendEvent]:
        """Return what a whole chat completion says."""
        if body.get("error"):
            return self._fail(read_error(body["error"]))
        choices = mappings(body.get("choices"))
        if not choices:
            return self._fail(no_answer(body, "choices"))
        # The counts come first: they are known even if the turn ends within the text.
        events = self._open(body) + _counted(body)
        for choice in choices:
            events += self._choice({"finish_reason": "stop", **choice}, mapping(choice.get("message")))
            if self._closed:
                return events
        self._closed = True
        return [*events, Closed()]

    def end(self) -> list[BackendEvent]:
        """Return what the end of the stream says: all is well if every choice has ended."""
        if self._closed or not self._ended or not all(self._ended.values()):
            return []
        self._closed = True
        return [Closed()]

    def _open(self, chunk: Mapping[str, Any]) -> list[BackendEvent]:
        if self._opened:
            return []
        self._opened = True
        return [
            Opened(
                created_at=seconds(chunk.get("created")) or None,  # Azure's first chunk says 0.
                model=string(chunk.get("model")) or None,
                system_fingerprint=string(chunk.get("system_fingerprint")) or None,
                service_tier=string(chunk.get("service_tier")) or None,
            )
        ]

    def _choice(self, choice: Mapping[str, Any], delta: Mapping[str, Any]) -> list[BackendEvent]:
        index = count(choice, "index")
        self._ended.setdefault(index, False)
        events: list[BackendEvent] = []
        # `reasoning_content` is DeepSeek's and vLLM's name, `reasoning` OpenRouter's and Ollama's.
        if text := string(delta.get("reasoning_content")) or string(delta.get("reasoning")):
            events.append(ReasoningDelta(text, "text", index))
        if text := _content(delta.get("content")):
            events.append(TextDelta(text, index))
        if text := string(delta.get("refusal")):
            events.append(RefusalDelta(text, index))
        calls = self._calls.setdefault(index, {})
        for position, call in enumerate(mappings(delta.get("tool_calls"))):
            key = call["index"] if isinstance(call.get("index"), int) else position
            same = calls.setdefault(key, [_CallParts()])
            if same[-1].is_followed_by(call):
                same.append(_CallParts())
            same[-1].add(call)
        if isinstance(delta.get("function_call"), dict):
            calls.setdefault(0, [_CallParts()])[-1].add({"function": delta["function_call"]})
        if (reason := string(choice.get("finish_reason"))) and not self._ended[index]:
            self._ended[index] = True
            if reason == "error":  # OpenRouter's and Mistral's; the former says more beside it.
                return [*events, *self._fail(read_error(choice.get("error")))]
            events += self._structured(index, cut=_REASONS.get(reason) is not None)
            events.append(Finished(_REASONS.get(reason, "stop"), index))
        return events

    def _structured(self, index: int, *, cut: bool = False) -> list[BackendEvent]:
        """Return a choice's calls; one that was ``cut`` broke off within the last of them, if in any."""
        calls = [parts for _, same in sorted(self._calls.pop(index, {}).items()) for parts in same]
        return [parts.call(index, whole=not cut or parts is not calls[-1]) for parts in calls]

    def _flush(self) -> list[BackendEvent]:
        return [event for index in sorted(self._calls) for event in self._structured(index)]

    def _fail(self, error: ApiError) -> list[BackendEvent]:
        self._closed = True
        return [Failed(error)]


# Mistral's, DeepSeek's and vLLM's own words for "cut" are the last three.
_REASONS: Mapping[str, FinishReason] = {
    "length": "length",
    "content_filter": "content_filter",
    "model_length": "length",
    "insufficient_system_resource": "length",
    "abort": "length",
}


class _CallParts:
    """A structured call in fragments: the name comes once, the arguments in pieces."""

    def __init__(self) -> None:
        self._name = ""
        self._kind: ToolKind = "function"
        self._id: str | None = None
        self._arguments: list[str] = []

    def is_followed_by(self, call: Mapping[str, Any]) -> bool:
        """Tell whether ``call`` begins another one: it has a name again, and an id of its own."""
        new_id = string(call.get("id"))
        named = string(mapping(call.get("custom") or call.get("function")).get("name"))
        return bool(self._id and new_id and named) and new_id != self._id

    def add(self, call: Mapping[str, Any]) -> None:
        if isinstance(call.get("custom"), dict):
            self._kind = "custom"
        self._id = self._id or string(call.get("id")) or None
        function = mapping(call.get("custom") or call.get("function"))
        self._name = self._name or string(function.get("name"))
        self._arguments.append(json_text(function.get("input" if self._kind == "custom" else "arguments")))

    def call(self, choice: int, *, whole: bool) -> StructuredCall:
        return StructuredCall(
            self._name, "".join(self._arguments), self._kind, choice=choice, call_id=self._id, whole=whole
        )


def _content(content: object) -> str:
    """Return a text, or the texts of a list of parts, as a few backends send."""
    if isinstance(content, list):
        return "".join(string(part.get("text")) for part in mappings(content))
    return string(content)


def _counted(chunk: Mapping[str, Any]) -> list[BackendEvent]:
    usage = chunk.get("usage")
    if not isinstance(usage, dict):
        return []
    read, written = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    return [
        Counted(
            Usage(
                input_tokens=read,
                output_tokens=written,
                total_tokens=count(usage, "total_tokens") or read + written,
                cached_tokens=count(mapping(usage.get("prompt_tokens_details")), "cached_tokens"),
                reasoning_tokens=count(mapping(usage.get("completion_tokens_details")), "reasoning_tokens"),
            )
        )
    ]
