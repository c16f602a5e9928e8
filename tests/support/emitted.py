"""Answers with text, reasoning, and structured calls whose arguments arrive in deltas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from support.wire import DONE, Json, event_frame, frame


@dataclass(frozen=True)
class Emitted:
    """A structured call from a backend. ``size``: the number of characters in each delta of the arguments."""

    name: str
    arguments: str
    size: int = 3
    namespace: str | None = None

    @property
    def pieces(self) -> list[str]:
        return [self.arguments[at : at + self.size] for at in range(0, len(self.arguments), self.size)]

    @property
    def chat_name(self) -> str:
        return f"{self.namespace}__{self.name}" if self.namespace else self.name


@dataclass(frozen=True)
class Thought:
    """Reasoning that arrives in a single delta."""

    text: str


Step = str | Thought | Emitted


def chat_body(steps: Sequence[Step], finish: str, *, interleaved: bool = False) -> bytes:
    """Return a chat stream. ``interleaved``: whether the deltas of adjacent calls alternate."""
    frames: list[bytes] = []
    queues: list[list[Json]] = []
    calls = 0

    def chunk(delta: Json, reason: str | None = None) -> None:
        frames.append(frame({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}))

    def flush() -> None:
        for fragment in _in_turns(queues, interleaved):
            chunk({"tool_calls": [fragment]})
        queues.clear()

    for step in steps:
        if isinstance(step, Emitted):
            first = {"id": f"c{calls}", "type": "function", "function": {"name": step.chat_name, "arguments": ""}}
            pieces = [{"function": {"arguments": piece}} for piece in step.pieces]
            queues.append([{"index": calls, **fragment} for fragment in (first, *pieces)])
            calls += 1
            continue
        flush()
        chunk({"content": step} if isinstance(step, str) else {"reasoning_content": step.text})
    flush()
    chunk({}, finish)
    return b"".join([*frames, DONE])


def chat_whole(steps: Sequence[Step], finish: str) -> bytes:
    """Return the answer as a non-streamed chat completion."""
    calls = [step for step in steps if isinstance(step, Emitted)]
    message = {
        "role": "assistant",
        "content": "".join(step for step in steps if isinstance(step, str)) or None,
        "reasoning_content": "".join(step.text for step in steps if isinstance(step, Thought)),
        "tool_calls": [
            {"id": f"c{index}", "type": "function", "function": {"name": call.chat_name, "arguments": call.arguments}}
            for index, call in enumerate(calls)
        ],
    }
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": finish}]}).encode()


def responses_body(steps: Sequence[Step], finish: str, *, interleaved: bool = False) -> bytes:
    """Return a Responses stream. ``interleaved``: whether events for different items alternate."""
    queues = [list(_item_events(steps, index, finish)) for index in range(len(steps))]
    frames = [event_frame(event) for event in _in_turns(queues, interleaved)]
    status = "incomplete" if finish == "length" else "completed"
    return b"".join([*frames, event_frame({"type": f"response.{status}", "response": _response(steps, finish)})])


def responses_whole(steps: Sequence[Step], finish: str) -> bytes:
    """Return the answer as a non-streamed Response object."""
    return json.dumps(_response(steps, finish)).encode()


def _item_events(steps: Sequence[Step], index: int, finish: str) -> Iterator[Json]:
    step, item, at = steps[index], _item(steps, index, finish), {"output_index": index, "item_id": f"i{index}"}
    initial: Json = {"content": []}
    deltas = [{"type": "response.output_text.delta", **at, "content_index": 0, "delta": step}]
    if isinstance(step, Emitted):
        initial = {"arguments": "", "status": "in_progress"}
        kind = "response.function_call_arguments.delta"
        deltas = [{"type": kind, **at, "delta": piece} for piece in step.pieces]
    elif isinstance(step, Thought):
        deltas = [{"type": "response.reasoning_text.delta", **at, "content_index": 0, "delta": step.text}]
    yield {"type": "response.output_item.added", "output_index": index, "item": {**item, **initial}}
    yield from deltas
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _item(steps: Sequence[Step], index: int, finish: str) -> Json:
    step = steps[index]
    if isinstance(step, Emitted):
        is_cut = finish == "length" and index == len(steps) - 1
        item = {"type": "function_call", "id": f"i{index}", "call_id": f"c{index}", "name": step.name}
        item |= {"namespace": step.namespace} if step.namespace else {}
        return {**item, "arguments": step.arguments, "status": "incomplete" if is_cut else "completed"}
    if isinstance(step, Thought):
        content = [{"type": "reasoning_text", "text": step.text}]
        return {"type": "reasoning", "id": f"i{index}", "summary": [], "content": content}
    content = [{"type": "output_text", "text": step, "annotations": []}]
    return {"type": "message", "id": f"i{index}", "role": "assistant", "content": content}


def _response(steps: Sequence[Step], finish: str) -> Json:
    status = {"status": "incomplete" if finish == "length" else "completed"}
    return {"id": "resp_b", **status, "output": [_item(steps, index, finish) for index in range(len(steps))]}


def _in_turns(queues: Sequence[Sequence[Any]], interleaved: bool) -> Iterator[Any]:
    """Yield one queue after another or, if ``interleaved``, the first entry of each queue, then the second, etc."""
    for entries in zip_longest(*queues) if interleaved else queues:
        yield from filter(None, entries)


BODIES: dict[str, Callable[..., bytes]] = {"chat": chat_body, "responses": responses_body}
WHOLE: dict[str, Callable[..., bytes]] = {"chat": chat_whole, "responses": responses_whole}
