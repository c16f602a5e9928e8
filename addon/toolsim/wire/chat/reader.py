"""Converts a chat backend's answer, streamed or not, to backend events.

    stream  := chunk* [DONE]?
    chunk   := {"choices": [{"index", "delta": {content?, tool_calls?, …}, "finish_reason"}], "usage"?} | {"error"}

This is the specification. Real servers deviate from it as follows; each rule covers a server that is in use.

 1. ``[DONE]`` is the terminator; anything after it, or after an error, is ignored.
 2. Many servers omit ``[DONE]``. A stream that ends without it is complete if every choice has a finish reason.
 3. The field for reasoning is ``reasoning_content`` (DeepSeek, vLLM, llama.cpp) or ``reasoning`` (OpenRouter, Ollama).
 4. ``content`` can be a list of parts, some of which are reasoning (Mistral's ``thinking``, which has its own parts).
 5. The first chunk can have no choices and ``created: 0`` (Azure).
 6. A call arrives in fragments, identified by their ``index``. Some servers omit the index (Gemini's gateway; the
    position then identifies the call), and some assign the index 0 to every call. A fragment with a name starts the
    next call if it has a new ID, or no ID and a different name. A fragment with the same name and no ID starts the next
    call if the arguments so far are a complete, non-empty object, and the next arguments begin a different object. The
    next arguments can arrive in a later fragment than the name. A call can also begin at another call's index and
    continue at its own index (DeepSeek on Ollama's servers); its later fragments then have neither a name nor an ID. A
    name can arrive in two fragments, which are joined if a tool with the joined name is offered, but no tool with
    either half as its name.
 7. Arguments can be an object instead of a JSON string, ``tool_calls`` can be one call instead of a list, and a call's
    name and arguments can be next to its ID instead of in ``function``. Fragments of arguments can be cumulative (each
    repeats all earlier fragments), or follow an empty object. Therefore, if the concatenation of all fragments is not
    JSON, the last fragment or the concatenation without an initial ``{}`` is used if it is JSON. The legacy
    ``function_call`` can duplicate ``tool_calls``; the call then counts once.
 8. Mid-stream errors are sent as ``{"error": …}``, as an ``event: error``, as bare ``{"message"}`` or ``{"detail"}``
    without choices, and as the finish reason ``error`` (OpenRouter, Mistral).
 9. Servers have different finish reasons for a truncated answer (``_REASONS``). An unknown reason counts as ``stop``.
10. If the stream ends in the middle of a line, this line is ignored, and is not an error.
11. A surrogate pair can be split between two deltas.
12. An event without data is only a keep-alive. ``[DONE]`` can have whitespace around it.
13. A non-streamed answer can lack a finish reason (``finish_reason: null``) but is still complete.
14. The end of a call is certain only at the end of the answer, and calls can interleave. Only the first call is
    therefore streamed early, until another call begins.
15. A finish reason can arrive too early, even in the first chunk (from Open WebUI, with reasoning). It therefore counts
    only if nothing else follows in its choice before the stream ends.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, override

from toolsim.core.events import (
    BackendEvent,
    Closed,
    Counted,
    Finished,
    FinishReason,
    Opened,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    StructuredCallStarted,
    StructuredDelta,
    TextDelta,
    ToolKind,
    Usage,
)
from toolsim.wire.api import Reader
from toolsim.wire.argument_streaming import EarlyArguments
from toolsim.wire.errors import no_answer, read_error
from toolsim.wire.json_codec import Joiner, whole_text
from toolsim.wire.json_fields import count, json_text, loaded, mapping, mappings, seconds, string

type _Text = TextDelta | ReasoningDelta | RefusalDelta


class ChatReader(Reader):
    """Converts one chat answer to backend events."""

    def __init__(self) -> None:
        super().__init__()
        self._opened = False
        self._choices: dict[int, _Choice] = {}

    @override
    def _read(self, chunk: dict[str, Any], name: str) -> list[BackendEvent]:
        if chunk.get("error"):
            return self._fail(read_error(chunk["error"]))
        bare = "choices" not in chunk and (string(chunk.get("message")) or string(chunk.get("detail")))
        if name == "error" or bare:
            return self._fail(read_error(chunk))
        events = self._open(chunk)
        for choice in mappings(chunk.get("choices")):
            events += self._choice(choice, mapping(choice.get("delta")))
            if self._closed:
                return events
        return events + _counted(chunk) if chunk.get("usage") else events

    @override
    def follow(self, delta: StructuredDelta, texts: Sequence[str]) -> None:
        self._choices[delta.choice].follow(texts)

    @override
    def whole(self, body: Mapping[str, Any]) -> list[BackendEvent]:
        if body.get("error"):
            return self._fail(read_error(body["error"]))
        choices = mappings(body.get("choices"))
        if not choices:
            return self._fail(no_answer(body, "choices"))
        # The token counts come first, so that they are reported even if the turn ends within the text.
        events = self._open(body) + _counted(body)
        for choice in choices:
            ended = {**choice, "finish_reason": string(choice.get("finish_reason")) or "stop"}
            events += self._choice(ended, mapping(choice.get("message")))
            if self._closed:
                return events
        return [*events, *self._done()]

    @override
    def end(self) -> list[BackendEvent]:
        # Without a terminator, the stream is complete if every choice has a finish reason (rule 2).
        if self._closed or not self._choices or not all(choice.reason for choice in self._choices.values()):
            return []
        return self._done()

    def _open(self, chunk: Mapping[str, Any]) -> list[BackendEvent]:
        if self._opened:
            return []
        self._opened = True
        return [
            Opened(
                created_at=seconds(chunk.get("created")) or None,  # Azure's first chunk has ``created: 0`` (rule 5).
                model=string(chunk.get("model")) or None,
                system_fingerprint=string(chunk.get("system_fingerprint")) or None,
                service_tier=string(chunk.get("service_tier")) or None,
            )
        ]

    def _choice(self, fields: Mapping[str, Any], delta: Mapping[str, Any]) -> list[BackendEvent]:
        index = count(fields, "index")
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _Choice(index, self.offered, streams_ahead=self.streams_ahead)
        events = choice.delta(delta)
        if events or delta.get("tool_calls") or delta.get("function_call"):
            choice.reason = ""  # The finish reason was sent too early, so ignore it (rule 15 in the module docstring).
        choice.reason = choice.reason or string(fields.get("finish_reason"))
        if choice.reason == "error":  # OpenRouter and Mistral report errors in this way (rule 8).
            return [*events, *self._fail(read_error(fields.get("error")))]
        return events

    @override
    def _done(self) -> list[BackendEvent]:
        self._closed = True
        return [*(event for _, choice in sorted(self._choices.items()) for event in choice.end()), Closed()]


class _Choice:
    """The state of one choice: its finish reason ("" until it ends), and the fragments of its calls by index."""

    def __init__(self, index: int, offered: Container[str], *, streams_ahead: bool) -> None:
        self.reason = ""
        self._offered = offered
        self._streams_ahead = streams_ahead
        self._index = index
        self._texts: Joiner[type[_Text]] = Joiner()
        # Several calls can share one index (rule 6 in the module docstring).
        self._calls: dict[int, list[_CallParts]] = {}
        self._latest = 0  # Index of the call that received the last fragment.
        self._legacy: _CallParts | None = None

    def delta(self, delta: Mapping[str, Any]) -> list[BackendEvent]:
        """Return the events of a delta, or of a non-streamed message. Complete calls are returned only by ``end``."""
        events: list[BackendEvent] = []
        # The field for reasoning has two names (rule 3 in the module docstring).
        if thought := string(delta.get("reasoning_content")) or string(delta.get("reasoning")):
            events += self._joined(ReasoningDelta, thought)
        content = delta.get("content")
        if content and isinstance(content, str):
            events += self._joined(TextDelta, content)
        else:
            events += [event for kind, text in _parts(content) for event in self._joined(kind, text)]
        if refusal := string(delta.get("refusal")):
            events += self._joined(RefusalDelta, refusal)
        if "tool_calls" in delta or "function_call" in delta:
            events += self._add_calls(delta)
        return events

    def follow(self, texts: Sequence[str]) -> None:
        """Append ``texts`` to the arguments of the first call. Only this call is streamed early."""
        self._calls[0][0].pieces += texts

    def end(self) -> list[BackendEvent]:
        """Return the events at the end of the choice: incomplete surrogate pairs, the remaining calls, and the end
        itself.

        If the answer was truncated, the last call is incomplete.
        """
        cut = _REASONS.get(self.reason)
        events = [event for kind in _TEXTS if (text := self._texts.end(kind)) for event in self._event(kind, text)]
        calls = [parts for _, same in sorted(self._calls.items()) for parts in same]
        if self._legacy is not None and not any(self._legacy.repeats(parts) for parts in calls):
            calls.append(self._legacy)
        events += [parts.call(self._index, whole=not cut or parts is not calls[-1]) for parts in calls]
        return [*events, Finished(cut or "stop", self._index)] if self.reason else events

    def _joined(self, kind: type[_Text], text: str) -> list[BackendEvent]:
        return self._event(kind, self._texts.join(kind, text))

    def _event(self, kind: type[_Text], text: str) -> list[BackendEvent]:
        if not text:
            return []
        if kind is ReasoningDelta:
            return [ReasoningDelta(text, "text", self._index)]
        return [kind(text, choice=self._index)]

    def _key(self, call: Mapping[str, Any], position: int) -> int:
        """Return the index of the call that a fragment begins or continues (rule 6 in the module docstring)."""
        index = call.get("index")
        key = index if isinstance(index, int) else position
        begins = string(call.get("id")) or string(_function(call).get("name"))
        return key if begins or key in self._calls or not self._calls else self._latest

    def _add_calls(self, delta: Mapping[str, Any]) -> list[BackendEvent]:
        events: list[BackendEvent] = []
        calls = delta.get("tool_calls")
        for position, call in enumerate([calls] if isinstance(calls, dict) else mappings(calls)):
            key = self._latest = self._key(call, position)
            same = self._calls.setdefault(key, [])
            if not same or same[-1].is_followed_by(call):
                name = (string(_function(call).get("name")) or same[-1].name) if same else ""
                same.append(_CallParts(self._offered, name))
                events.append(StructuredCallStarted(self._index))
            piece = same[-1].add(call)
            # Only the first call is streamed early, until another call begins (rule 14).
            is_only = key == 0 and len(self._calls) == len(same) == 1 and self._legacy is None
            if self._streams_ahead and is_only:
                events += same[0].ahead(piece, self._index, is_named=_is_named(call))
        if isinstance(delta.get("function_call"), dict):
            if self._legacy is None:
                self._legacy = _CallParts(self._offered)
                events.append(StructuredCallStarted(self._index))
            self._legacy.add({"function": delta["function_call"]})
        return events


_TEXTS: tuple[type[_Text], ...] = (ReasoningDelta, TextDelta, RefusalDelta)

# The last three finish reasons mean that the answer was truncated. Only Mistral, DeepSeek and vLLM use them.
_REASONS: Mapping[str, FinishReason] = {
    "length": "length",
    "content_filter": "content_filter",
    "model_length": "length",
    "insufficient_system_resource": "length",
    "abort": "length",
}


# Maximum number of times that the arguments of one call are parsed to find out whether they are complete, in which
# case the next fragment can start a new call. After that, all fragments belong to the same call.
_MAX_TIMES_PARSED = 64


class _CallParts:
    """A structured call in fragments. The name arrives in one or two fragments, and the arguments in any number of
    fragments.
    """

    def __init__(self, offered: Container[str], name: str = "") -> None:
        self._offered = offered
        self.name = name
        self._kind: ToolKind = "function"
        self._id: str | None = None
        self.pieces: list[str] = []
        self._ahead = EarlyArguments()
        self._key = ""
        self._is_named_again = False
        self._times_parsed = 0

    def is_followed_by(self, call: Mapping[str, Any]) -> bool:
        """Return whether the fragment ``call`` starts another call (rule 6 in the module docstring)."""
        new_id = string(call.get("id"))
        function = _function(call)
        name = string(function.get("name"))
        if self._is_continued_by(name):
            return False
        if self._id and new_id:
            return bool(name) and new_id != self._id
        if name and self.name and name != self.name:
            return True
        return bool(name or self._is_named_again) and self._is_whole_before(json_text(function.get("arguments")))

    def _is_continued_by(self, name: str) -> bool:
        """Return whether ``name`` is the second half of the call's name, judging by the names of the offered tools."""
        if not name or not self.name or any(self.pieces) or self.name in self._offered or name in self._offered:
            return False
        return self.name + name in self._offered

    def _is_whole_before(self, piece: str) -> bool:
        """Return whether the arguments so far are a complete, non-empty object, and ``piece`` begins another object."""
        if self._kind != "function" or not piece.lstrip().startswith("{"):
            return False
        last = next((piece for piece in reversed(self.pieces) if piece and not piece.isspace()), "")
        if not last.rstrip().endswith("}") or self._times_parsed == _MAX_TIMES_PARSED:
            return False
        self._times_parsed += 1
        if not (whole := loaded(text := self.arguments())):
            return False
        return not piece.startswith(text) and loaded(piece) != whole

    def add(self, call: Mapping[str, Any]) -> str:
        """Add a fragment of the call, and return its part of the arguments."""
        if isinstance(call.get("custom"), dict):
            self._kind = "custom"
        self._id = self._id or string(call.get("id")) or None
        function = _function(call)
        piece = json_text(function.get("input" if self._kind == "custom" else "arguments"))
        self._is_named_again = bool(self.name) and not piece and (self._is_named_again or _is_named(call))
        name = string(function.get("name"))
        self.name = self.name + name if self._is_continued_by(name) else self.name or name
        self.pieces.append(piece)
        return piece

    def ahead(self, piece: str, choice: int, *, is_named: bool) -> list[BackendEvent]:
        """Return the event for ``piece``, a fragment of the arguments, or [] if it cannot be streamed early."""
        if piece and (not self.name or self._kind != "function"):
            self._ahead.stop()
        if not (text := self._ahead.feed(piece)):
            return []
        is_first, self._key = not self._key, "0"
        return [StructuredDelta(self._key, self.name, text, is_first, choice=choice, is_named=is_named)]

    def repeats(self, other: _CallParts) -> bool:
        """Return whether this call is the ``other`` call in another shape (rule 7 in the module docstring)."""
        mine, theirs = self.arguments(), other.arguments()
        return self.name == other.name and (mine == theirs or loaded(mine) == loaded(theirs) is not None)

    def call(self, choice: int, *, whole: bool) -> StructuredCall:
        return StructuredCall(
            self.name, self.arguments(), self._kind, choice=choice, call_id=self._id, whole=whole, key=self._key
        )

    def arguments(self) -> str:
        """Return the arguments so far, without the repetitions in cumulative fragments (rule 7 in the module
        docstring).
        """
        text = "".join(self.pieces)
        if self._kind == "function" and len(self.pieces) > 1 and loaded(text) is None:
            last = next((piece for piece in reversed(self.pieces) if piece), "")
            rest = "".join(self.pieces[1:]) if loaded(self.pieces[0]) == {} else ""
            text = next((candidate for candidate in (last, rest) if loaded(candidate) is not None), text)
        return whole_text(text)


def _function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object that contains a call's name and arguments, possibly the call itself (rule 7 in the module
    docstring).
    """
    return mapping(call.get("custom") or call.get("function")) or call


def _is_named(call: Mapping[str, Any]) -> bool:
    """Return whether a fragment has a name but no ID, so that it might start the next call (rule 6 in the module
    docstring).
    """
    return bool(string(_function(call).get("name"))) and not string(call.get("id"))


def _parts(content: object) -> Iterator[tuple[type[_Text], str]]:
    """Yield the event type and the text of each part in a list (rule 4 in the module docstring)."""
    for part in mappings(content):
        if thought := part.get("thinking"):
            yield ReasoningDelta, string(thought) or "".join(string(item.get("text")) for item in mappings(thought))
        elif text := string(part.get("text")):
            yield TextDelta, text


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
