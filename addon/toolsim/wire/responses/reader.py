"""Converts a Responses backend's answer, streamed or not, to backend events.

    stream := created in_progress? item* (completed | incomplete | failed | cancelled | error) [DONE]?
    item   := added (part.added delta* done part.done | delta* done) item.done

Content is read from the deltas. If a backend does not send deltas, content is read from the ``done`` events,
``output_item.done`` or the final object. Every text and every item has a key, and ``_emitted`` contains the keys of all
content already emitted, so that nothing is emitted twice. Each rule covers a server that is in use.

 1. The terminal event ends the answer; ``[DONE]`` and the end of the input have no meaning.
 2. Some servers omit the deltas, the ``done`` events, or the final object's ``output``. Any one of them is sufficient.
 3. Events can lack an ``output_index`` (llama.cpp). Items are then numbered by the IDs in their events, in order of
    appearance. A call can lack an ID; its events then contain its ``call_id``.
 4. The final object can omit items, so the position of an item in it is not the item's index. The nth item of a type is
    the nth item of this type in the stream. Any further items are new, and follow all other items.
 5. A call is complete with ``…arguments.done`` even if no ``output_item.done`` follows.
 6. An item of any other kind belongs to a hosted tool. It is announced, and its events are forwarded, even if their
    types are unknown. An item that was not announced is passed on when it is complete. Any other event of an unknown
    type is passed on without its numbers, which are only valid for the backend's stream.
 7. Some gateways report ``function_call_output`` items for calls to unknown MCP servers. These items are dropped.
 8. A failed response can be sent as ``response.failed``, with the ``error`` in the response or next to it, as ``error``
    (flat or nested), as an event that has no type but contains an ``error``, and as a 200 with ``error`` set.
 9. If the stream ends in the middle of a line, this line is ignored, and is not an error.
10. A surrogate pair can be split between two deltas.
11. An event without data is only a keep-alive.
12. All items can have the same ``output_index``. If the item at an index is done and another item arrives there, the
    new item is assigned a separate place after all other items.
13. A message's ``content`` can be a string.
14. Calls can interleave, and are checked when they are done. A call is streamed early only if no other call was open
    when it began.
15. The number of a part does not identify the part. vLLM numbers the parts of gpt-oss's reasoning and message
    consecutively, but starts again at 0 in the finished item. A text is therefore identified by its position among the
    texts of its item. The next text begins when it is announced, after the previous text has ended, or when the number
    changes.
16. An answer can have several messages. The first text of each message after the first is announced (``NextMessage``),
    unless only an ID suggests a new message: some backends give an item a new ID in each event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from typing import Any, override

from toolsim.core.errors import ApiError
from toolsim.core.events import (
    BackendEvent,
    Closed,
    Counted,
    Finished,
    FinishReason,
    HostedEnded,
    HostedProgress,
    HostedStarted,
    NextMessage,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    StructuredCallStarted,
    StructuredDelta,
    TextDelta,
)
from toolsim.wire.api import Reader
from toolsim.wire.argument_streaming import EarlyArguments
from toolsim.wire.errors import no_answer, read_error
from toolsim.wire.json_codec import Joiner, whole_text
from toolsim.wire.json_fields import count, json_text, mapping, mappings, seconds, string
from toolsim.wire.responses.shapes import read_usage

# Types of items that a request can contain, but an answer should not. Some gateways send them anyway (rule 7).
_PHANTOMS = frozenset({"function_call_output", "custom_tool_call_output"})
_CALLS = frozenset({"function_call", "custom_tool_call"})
_NOT_HOSTED = frozenset({"message", "reasoning"}) | _CALLS | _PHANTOMS
_FAILURES = ("failed", "cancelled")
# Types of events, or their beginnings, that are known but not needed. They only report progress, or repeat the content
# of other events.
_KNOWN_EVENTS = (
    *("response.in_progress", "response.queued", "response.output_item.", "response.content_part.", "keepalive"),
    *("response.output_text.", "response.refusal.", "response.reasoning_", "response.function_call_arguments."),
    *("response.custom_tool_call_input.", "response.web_search_call.", "response.file_search_call."),
    *("response.code_interpreter_call", "response.image_generation_call.", "response.mcp_call.", "ping"),
    *("response.mcp_call_arguments.", "response.mcp_list_tools."),
)
_NUMBERS = ("type", "item_id", "output_index", "sequence_number")
_MAX_TYPE = 80
_FIRST_EXTRA_PLACE = 1_000_000
"""First place to be assigned to items whose index is already in use. No answer has that many items."""

_TEXTS = {"text": TextDelta, "refusal": RefusalDelta, "reasoning": ReasoningDelta}


@dataclass(slots=True)
class _Part:
    """The latest text of one kind in an item."""

    nth: int
    """The position among the item's texts of this kind (rule 15 in the module docstring)."""
    number: int
    """The number that the backend assigned to the text."""
    is_open: bool = True


class ResponsesReader(Reader):
    """Converts one Responses answer to backend events."""

    def __init__(self) -> None:
        super().__init__()
        self._emitted: set[tuple[object, ...]] = set()
        # Maps output indexes to the announced items, for backends that never report an item as done.
        self._announced: dict[int, dict[str, Any]] = {}
        # Maps output indexes to the types of the announced items. ``_arguments`` maps the indexes of calls to the
        # fragments of their arguments so far.
        self._kinds: dict[int, str] = {}
        self._hosted: set[int] = set()
        self._arguments: dict[int, list[str]] = {}
        self._ahead: defaultdict[int, EarlyArguments] = defaultdict(EarlyArguments)
        self._streamed_ahead: set[int] = set()
        # Maps item IDs to output indexes, because llama.cpp's events have no index. The indexes are assigned in the
        # order in which the items appear.
        self._indexes: dict[str, int] = {}
        # An item whose output index is already in use is moved to a separate place (rule 12). ``_moved`` maps the
        # shared index to the place of the latest such item. ``_finished`` maps each place to the finished item there.
        self._moved: dict[int, int] = {}
        self._finished: dict[int, Mapping[str, Any]] = {}
        # The places (see ``_place``) of all messages that have text, and the place of the message with the latest text.
        self._messages: set[int] = set()
        self._speaking = -1
        self._texts: Joiner[tuple[object, ...]] = Joiner()
        # Maps the kind and place of a text to the latest text there.
        self._parts: dict[tuple[str, int], _Part] = {}

    @override
    def _read(self, event: dict[str, Any], name: str) -> list[BackendEvent]:
        kind = event.get("type") or name
        delta = event.get("delta")
        if kind == "response.output_text.delta":
            # Nearly all events take this path; all other cases occur only a few times per answer.
            if not isinstance(delta, str) or not delta:
                return []
            index = self._place(event)
            self._kinds[index] = "message"
            return self._delta(self._key("text", index, count(event, "content_index")), delta, TextDelta)
        return self._rare_event(kind, event, delta if isinstance(delta, str) else "")

    @override
    def follow(self, delta: StructuredDelta, texts: Sequence[str]) -> None:
        self._arguments[int(delta.key)] += texts

    @override
    def whole(self, body: Mapping[str, Any]) -> list[BackendEvent]:
        if (
            not isinstance(body.get("output"), list)
            and not body.get("error")
            and string(body.get("status")) not in _FAILURES
        ):
            return self._fail(no_answer(body, "output"))
        if body.get("status") in ("queued", "in_progress") and not body.get("output"):
            message = f"The backend returned a response with the status {body['status']}, expected a complete response."
            return self._fail(ApiError(message, code="backend_bad_answer", status=502))
        events: list[BackendEvent] = [_opened(body)]
        return events + self._terminal(body)

    def _rare_event(self, kind: object, event: dict[str, Any], delta: str) -> list[BackendEvent]:
        item = event.get("item")
        if isinstance(item, dict):
            self._move_if_taken(event, item)
        where = (self._place(event), count(event, "content_index"))
        match kind:
            case "response.content_part.added" | "response.content_part.done":
                part_kind = "refusal" if mapping(event.get("part")).get("type") == "refusal" else "text"
                if (part := self._parts.get((part_kind, where[0]))) is not None:
                    part.is_open = False
                    part.number = -1 if kind == "response.content_part.added" else part.number
            case "response.created":
                return [_opened(mapping(event.get("response")))]
            case "response.output_text.done":
                return self._done_text(self._ended("text", *where), event.get("text"), TextDelta)
            case "response.refusal.delta" if delta:
                return self._delta(self._key("refusal", *where), delta, RefusalDelta)
            case "response.refusal.done":
                return self._done_text(self._ended("refusal", *where), event.get("refusal"), RefusalDelta)
            case "response.reasoning_summary_text.delta" if delta:
                return self._reasoning(delta, (where[0], count(event, "summary_index")), "summary")
            case "response.reasoning_text.delta" if delta:
                return self._reasoning(delta, where, "text")
            case "response.output_item.added" if isinstance(item, dict):
                self._announced[where[0]] = item
                kind = self._kinds[where[0]] = string(item.get("type"))
                started: list[BackendEvent] = [StructuredCallStarted()] if kind in _CALLS else []
                return started + self._hosted_added(item, where[0])
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" if delta:
                self._arguments.setdefault(where[0], []).append(delta)
                return self._call_delta(where[0], delta) if self.streams_ahead else []
            case "response.function_call_arguments.done":
                self._announced.setdefault(where[0], {}).update(arguments=event.get("arguments"), status="completed")
            case "response.custom_tool_call_input.done":
                self._announced.setdefault(where[0], {}).update(input=event.get("input"), status="completed")
            case "response.output_item.done" if isinstance(item, dict):
                self._kinds[where[0]] = string(item.get("type"))
                return self._item(item, where[0])
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                response = mapping(event.get("response"))
                # Some servers send the error next to the response (rule 8 in the module docstring).
                error = response.get("error") or event.get("error")
                return self._terminal({"status": str(kind).removeprefix("response."), **response, "error": error})
            case "error":
                return self._fail(read_error(event.get("error") or event))
            case None | "" if event.get("error"):
                return self._fail(read_error(event["error"]))
            case str() if kind:
                if not kind.startswith(_KNOWN_EVENTS):
                    self.unknown[kind[:_MAX_TYPE]] = None
                return self._hosted_event(kind, event, where[0])
        return []

    def _call_delta(self, index: int, delta: str) -> list[BackendEvent]:
        item = self._announced.get(index, {})
        if index not in self._streamed_ahead:
            other_calls = [place for place in self._announced if self._kinds.get(place) in _CALLS and place != index]
            # A call is streamed early only if no other call was open when it began (rule 14).
            is_alone = all(("item", place) in self._emitted for place in other_calls)
            if item.get("type") != "function_call" or not string(item.get("name")) or not is_alone:
                self._ahead[index].stop()
        if ("item", index) in self._emitted or not (text := self._ahead[index].feed(delta)):
            return []
        is_first = index not in self._streamed_ahead
        self._streamed_ahead.add(index)
        name, namespace = string(item.get("name")), string(item.get("namespace")) or None
        return [StructuredDelta(str(index), name, text, is_first, namespace)]

    def _hosted_added(self, item: dict[str, Any], index: int) -> list[BackendEvent]:
        if (
            self._kinds[index] in _NOT_HOSTED
            or not self._kinds[index]
            or index in self._hosted
            or ("item", index) in self._emitted
        ):
            return []
        self._hosted.add(index)
        return [HostedStarted(str(index), dict(item))]

    def _hosted_event(self, kind: str, event: Mapping[str, Any], index: int) -> list[BackendEvent]:
        names_it = isinstance(event.get("output_index"), int) or isinstance(event.get("item_id"), str)
        fields = {name: value for name, value in event.items() if name not in _NUMBERS}
        if names_it and index in self._hosted and ("item", index) not in self._emitted:
            return [HostedProgress(str(index), kind, fields)]
        return [] if kind.startswith(_KNOWN_EVENTS) else [HostedProgress("", kind, fields)]

    def _place(self, event: Mapping[str, Any]) -> int:
        """Return the place of an event's item, which is its output index unless an earlier item has the same index."""
        index = self._index(event)
        return self._moved.get(index, index)

    def _index(self, event: Mapping[str, Any]) -> int:
        index = event.get("output_index")
        if isinstance(index, int):
            return index
        item = mapping(event.get("item"))
        # A call can lack an ID; its events then refer to it by its call_id.
        name = string(event.get("item_id")) or string(item.get("id")) or string(item.get("call_id"))
        return self._indexes.setdefault(name, len(self._indexes)) if name else 0

    def _move_if_taken(self, event: Mapping[str, Any], item: Mapping[str, Any]) -> None:
        """Assign a separate place to an item if another item is already done at its index (rule 12 in the module
        docstring).
        """
        done = self._finished.get(self._place(event))
        if done is not None and _is_other_item(item, done, is_whole=event.get("type") == "response.output_item.done"):
            self._moved[self._index(event)] = _FIRST_EXTRA_PLACE + len(self._finished)

    def _reasoning(self, delta: str, part: tuple[int, int], kind: Any) -> list[BackendEvent]:
        key = ("reasoning", part[0])
        self._kinds[part[0]] = "reasoning"
        # The parts of an item's summary are separate paragraphs.
        gap = "\n\n" if key in self._emitted and (*key, part) not in self._emitted else ""
        self._emitted |= {key, (*key, part)}
        text = gap + self._texts.join(key, delta)
        return [ReasoningDelta(text, kind)] if text else []

    def _key(self, kind: str, place: int, number: int) -> tuple[str, int, int]:
        """Return the key of the text to which a delta belongs (rule 15 in the module docstring)."""
        part = self._parts.get((kind, place))
        if part is None:
            part = self._parts[kind, place] = _Part(0, number)
        elif not part.is_open or part.number != number:
            part.nth, part.number, part.is_open = part.nth + 1, number, True
        return kind, place, part.nth

    def _ended(self, kind: str, place: int, number: int) -> tuple[str, int, int]:
        """Return the key of the text to which a ``done`` event belongs. If the text had no deltas, a new key is
        created.
        """
        part = self._parts.get((kind, place))
        is_repeated = part is not None and not part.is_open and part.number == number
        key = (kind, place, part.nth) if part and (part.is_open or is_repeated) else self._key(kind, place, number)
        self._parts[kind, place].is_open = False
        return key

    def _delta(self, key: tuple[str, int, int], delta: str, kind: type[TextDelta | RefusalDelta]) -> list[BackendEvent]:
        self._emitted.add(key)
        text = self._texts.join(key[:2], delta)
        if text and key[1] != self._speaking and kind is TextDelta:
            return [*self._begin_text(key[1]), kind(text)]
        return [kind(text)] if text else []

    def _begin_text(self, index: int) -> list[BackendEvent]:
        """Return the event that announces a message's first text if another message had text before (rule 16 in the
        module docstring).
        """
        is_next = bool(self._messages) and index not in self._messages
        is_certain = index >= len(self._indexes) or index in self._announced or index in self._finished
        self._speaking = index
        self._messages.add(index)
        return [NextMessage()] if is_next and is_certain else []

    def _done_text(
        self, key: tuple[str, int, int], text: object, kind: type[TextDelta | RefusalDelta]
    ) -> list[BackendEvent]:
        """Return the events of a complete text. If its deltas have already been emitted, only the last character can be
        missing: an incomplete surrogate pair, which is replaced with U+FFFD.
        """
        if key in self._emitted:
            rest = self._texts.end(key[:2])
            return [kind(rest)] if rest else []
        return self._delta(key, text, kind) + self._done_text(key, None, kind) if isinstance(text, str) and text else []

    def _item(self, item: Mapping[str, Any], index: int) -> list[BackendEvent]:
        """Return the events for a complete output item, except for content that was already emitted."""
        key = ("item", index)
        if key in self._emitted:
            return []
        self._emitted.add(key)
        self._finished[index] = item
        match item.get("type"):
            case "message":
                return self._message(item, index)
            case "reasoning" if ("reasoning", index) not in self._emitted:
                summary = [part.get("text") for part in mappings(item.get("summary"))]
                raw = [part.get("text") for part in mappings(item.get("content"))]
                events: list[BackendEvent] = []
                if text := "\n\n".join(part for part in summary if isinstance(part, str)):
                    events.append(ReasoningDelta(whole_text(text), "summary"))
                if text := "\n\n".join(part for part in raw if isinstance(part, str)):
                    events.append(ReasoningDelta(whole_text(text), "text"))
                return events
            case "function_call" | "custom_tool_call" as kind:
                text = json_text(item.get("arguments" if kind == "function_call" else "input"))
                return [
                    StructuredCall(
                        string(item.get("name")),
                        whole_text(text or "".join(self._arguments.get(index, ()))),
                        "function" if kind == "function_call" else "custom",
                        string(item.get("namespace")) or None,
                        call_id=string(item.get("call_id")) or None,
                        whole=item.get("status") not in ("in_progress", "incomplete"),
                        key=str(index) if index in self._streamed_ahead else "",
                    )
                ]
            case str(kind) if index in self._hosted:
                return [HostedEnded(str(index), dict(item))]
            case str(kind) if kind not in _NOT_HOSTED:
                return [PassThrough(dict(item))]
        return []

    def _message(self, item: Mapping[str, Any], index: int) -> list[BackendEvent]:
        events: list[BackendEvent] = []
        content = item.get("content")
        parts = [{"text": content}] if isinstance(content, str) else mappings(content)
        nth = {"refusal": count_from(), "text": count_from()}
        for part in parts:
            if part.get("type") == "refusal":
                key = ("refusal", index, next(nth["refusal"]))
                events += self._done_text(key, part.get("refusal"), RefusalDelta)
            else:
                events += self._done_text(("text", index, next(nth["text"])), part.get("text"), TextDelta)
        return events

    def _terminal(self, response: Mapping[str, Any]) -> list[BackendEvent]:
        if string(response.get("status")) in _FAILURES or response.get("error"):
            error = response.get("error") or {
                "message": f"The backend returned a response with the status {response.get('status')}."
            }
            return self._fail(read_error(error))
        events: list[BackendEvent] = []
        # The token counts come first, so that they are reported even if the turn ends within the text.
        if (usage := read_usage(response.get("usage"))) is not None:
            events.append(Counted(usage))
        output = self._places(mappings(response.get("output")))
        for index, item in sorted({**self._announced, **output}.items()):
            events += self._item(item, index)
        events += self._halves()
        reason: FinishReason = "stop"
        if response.get("status") == "incomplete":
            details = mapping(response.get("incomplete_details"))
            reason = "content_filter" if details.get("reason") == "content_filter" else "length"
        self._closed = True
        return [*events, Finished(reason), Closed()]

    def _halves(self) -> list[BackendEvent]:
        """Return the events that replace incomplete surrogate pairs at the end of texts."""
        return [_TEXTS[str(key[0])](self._texts.end(key)) for key in self._texts.open_keys()]

    def _places(self, output: list[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
        """Return the items of the final object by their index in the stream (rule 4 in the module docstring)."""
        by_kind: defaultdict[str, list[int]] = defaultdict(list)
        for index in sorted(self._kinds, reverse=True):
            by_kind[self._kinds[index]].append(index)
        fresh = count_from(max(self._kinds, default=-1) + 1)
        places: dict[int, Mapping[str, Any]] = {}
        for item in output:
            same = by_kind[string(item.get("type"))]
            places[same.pop() if same else next(fresh)] = item
        return places


def _is_other_item(item: Mapping[str, Any], done: Mapping[str, Any], *, is_whole: bool) -> bool:
    """Return whether ``item`` differs from the finished item ``done``. The arguments are compared only if ``is_whole``
    is true.

    IDs are not compared, because some backends assign a new ID to an item in each event.
    """
    keys = ("type", "call_id", "name", "arguments", "input") if is_whole else ("type", "call_id", "name")
    return any(item.get(key) != done.get(key) for key in keys)


def _opened(response: Mapping[str, Any]) -> Opened:
    return Opened(
        response_id=string(response.get("id")) or None,
        created_at=seconds(response.get("created_at")),
        model=string(response.get("model")) or None,
        service_tier=string(response.get("service_tier")) or None,
    )
