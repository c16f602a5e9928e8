"""The events of a streamed Responses answer, as frames.

1. Every frame is written in one piece; ``event:`` repeats the ``type``.
2. One counter gives each event its ``sequence_number``, from 0, including errors and keep-alives.
3. The deltas of one text differ only in their text and number: the rest of their frames is serialised once.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolsimlib.wire.json_codec import dump, dump_string
from toolsimlib.wire.responses.shapes import part_of
from toolsimlib.wire.sse import encode


def head_of(event: str, fields: Mapping[str, Any], more: str = "") -> str:
    """Return the frame of an event up to its number. ``more``: further members, already JSON, each after a comma."""
    return f'event: {event}\ndata: {dump({"type": event, **fields})[:-1]}{more},"sequence_number":'


def deltas_of(event: str, fields: Mapping[str, Any], more: str = "") -> tuple[str, str]:
    """Return the parts of a delta's frame before and after its text, up to the number. ``more``: as in ``head_of``."""
    return f'event: {event}\ndata: {dump({"type": event, **fields})[:-1]},"delta":', f'{more},"sequence_number":'


class EventStream:
    """Makes frames, and buffers them until they are taken. ``is_on`` is false for an answer that is not streamed."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self._number = 0
        self._frames: list[bytes] = []
        self._delta_head = self._delta_tail = ""

    def emit(self, event: str, fields: Mapping[str, Any], more: str = "") -> None:
        """Make the frame of an event. ``more``: as in ``head_of``."""
        if self.is_on:
            self.number(head_of(event, fields, more))

    def number(self, head: str) -> None:
        """Make the frame of an event from its head."""
        self._frames.append(f"{head}{self._number}}}\n\n".encode())
        self._number += 1

    def start_deltas(self, ends: tuple[str, str]) -> None:
        """Write the following deltas between these ends (``deltas_of``)."""
        self._delta_head, self._delta_tail = ends

    def deltas(self, texts: Sequence[str]) -> None:
        """Make the frames of deltas that came together, as one chunk."""
        if self.is_on:
            head, tail, first = self._delta_head, self._delta_tail, self._number
            self._number += len(texts)
            frames = [f"{head}{dump_string(text)}{tail}{number}}}\n\n" for number, text in enumerate(texts, first)]
            self._frames.append("".join(frames).encode())

    def done(self) -> None:
        """Make the last frame, after all events."""
        if self.is_on:
            self._frames.append(encode("[DONE]"))

    def take(self) -> list[bytes]:
        """Return the frames made since the last call."""
        frames, self._frames = self._frames, []
        return frames


class Message(NamedTuple):
    """The start of a message: its ``item``, the heads of the events that announce it, and the ends of its deltas."""

    item: dict[str, Any]
    heads: tuple[str, str]
    deltas: tuple[str, str]


def empty_message() -> dict[str, Any]:
    """Return the item of a message that has just begun."""
    name = f"msg_{secrets.token_hex(24)}"
    return {"id": name, "type": "message", "status": "in_progress", "role": "assistant", "content": []}


def first_text_message() -> Message:
    """Return the start of an answer that begins with text, as most do: made before any arrives, while nobody waits."""
    item = empty_message()
    where = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    added = head_of("response.output_item.added", {"output_index": 0, "item": item})
    part = head_of("response.content_part.added", {**where, "part": part_of("text", "")})
    return Message(item, (added, part), deltas_of("response.output_text.delta", where, ',"logprobs":[]'))
