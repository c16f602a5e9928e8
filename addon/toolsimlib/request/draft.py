"""Messages under construction, and a cache of drafts: a client repeats its history with each request, and adds to it.

The items of a history become messages one after the other, so the draft of any number of items depends only on them and
on the ``Setting``. The drafts of the latest histories are cached, and a history that begins with the items of one
continues it.

1. A cached draft applies if its items equal the first ones of the history. Mostly they are the very same objects
   (``wire/beginnings.py``), which costs next to nothing to compare.
2. What the report gets is part of the draft: a history that continues one reports the same as one written from scratch.
3. A cached draft never changes: it is copied when it is cached, and when a history continues it.
4. Another thread may do the same at the same time (``wire/kept_arrays.py``, rule 4), so the cache is a tuple that is
   replaced and never changed. Its length and the size of all histories together are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from toolsimlib.conversation import Call, CallOutput, HostedItem, Item, Message, Part, Role, Text, Thought

# Of all histories together; short ones are quickly written.
_MAX_DRAFTS, _MIN_ITEMS, _MAX_CHARS = 32, 16, 2_097_152
# Added for each item, which takes memory even without text: a body may hold a million.
_ITEM_CHARS = 64


class Setting(NamedTuple):
    """What messages depend on beside their items.

    ``sentinel``: the tag of calls that are written as blocks, None for records. ``max_output_bytes``: of a tool's
    output. ``tells_thoughts``: whether reasoning is written. ``keeps_hosted``: whether hosted items stay.
    ``marks_calls``, ``marks_errors``: which of a user's lines that look like records are marked as text.
    """

    sentinel: str | None
    max_output_bytes: int
    tells_thoughts: bool
    keeps_hosted: bool
    marks_calls: bool
    marks_errors: bool


@dataclass(slots=True)
class Draft:
    """The messages of the first ``count`` items.

    ``echoed_calls``, ``outputs_replaced`` and ``dropped`` are for the ``Report``. ``done``: what is closed; the message
    that is open has ``role``, ``name`` and parts, whose texts are collected in ``pieces``, so that joining a long
    history takes linear time. ``after_record``: it ends with a record.
    """

    count: int = 0
    echoed_calls: int = 0
    outputs_replaced: int = 0
    dropped: list[str] = field(default_factory=list)
    done: list[Message | HostedItem] = field(default_factory=list)
    role: Role | None = None
    name: str | None = None
    pieces: list[Part | list[str]] = field(default_factory=list)
    after_record: bool = False

    def copy(self) -> Draft:
        """Return a draft that continues from here on its own."""
        pieces = [[*piece] if isinstance(piece, list) else piece for piece in self.pieces]
        return replace(self, dropped=[*self.dropped], done=[*self.done], pieces=pieces)

    def message(self, message: Message) -> None:
        """Add a message."""
        self._turn_to(message.role, message.name)
        first = True
        for part in message.parts:
            if not isinstance(part, Text):
                self.pieces.append(part)
            elif part.text:
                # Only the first text is joined to what comes before: the others are separate parts.
                self._text(part.text, "\n\n" if first else None)
            first = False
        self.after_record = False

    def record(self, role: Role, line: str) -> None:
        """Add a record, which is one line of a message of ``role``."""
        if role != self.role or self.name is not None:
            self._close()
            # Most of a long history is calls and outputs in turn: each is a message of one text.
            self.role, self.name, self.pieces = role, None, [[line]]
        else:
            self._text(line, "\n" if self.after_record else "\n\n")
        self.after_record = True

    def parts(self, parts: Iterable[Part]) -> None:
        """Add parts to the message that is open."""
        self.pieces.extend(parts)

    def item(self, item: HostedItem) -> None:
        """Add an item that stays as it is."""
        self._close()
        self.role = None
        self.done.append(item)

    def finish(self) -> list[Message | HostedItem]:
        """Return the messages; nothing can be added any more."""
        self._close()
        return self.done

    def _turn_to(self, role: Role, name: str | None) -> None:
        if role != self.role or name != self.name:
            self._close()
            self.role, self.name = role, name

    def _text(self, text: str, separator: str | None) -> None:
        if not self.pieces:
            self.pieces.append([text])
        elif separator is not None and isinstance(last := self.pieces[-1], list):
            last += (separator, text)
        else:
            self.pieces.append([text])

    def _close(self) -> None:
        if self.role is not None:
            if len(self.pieces) == 1 and type(only := self.pieces[0]) is list:
                parts: tuple[Part, ...] = (Text("".join(only)),)
            else:
                parts = tuple([Text("".join(part)) if isinstance(part, list) else part for part in self.pieces])
            self.done.append(Message(self.role, parts or (Text(""),), self.name))
        self.pieces = []
        self.after_record = False


@dataclass(frozen=True, slots=True)
class KeptDraft:
    """The draft of ``items``, which is cached. ``size``: what they count, in characters."""

    items: tuple[Item, ...]
    setting: Setting
    draft: Draft
    size: float

    def begins(self, items: tuple[Item, ...], setting: Setting) -> bool:
        """Return whether ``items`` begin with these ones."""
        count = len(self.items)
        return (
            count <= len(items)
            # Most others differ here.
            and self.items[-1] == items[count - 1]
            and self.setting == setting
            and self.items == items[:count]
        )


class Drafts:
    """The drafts of the latest histories."""

    def __init__(self) -> None:
        self._latest: tuple[KeptDraft, ...] = ()

    def beginning(self, items: tuple[Item, ...], setting: Setting) -> KeptDraft | None:
        """Return the longest one with which ``items`` begin, None if there is none."""
        found = [kept for kept in self._latest if kept.begins(items, setting)]
        return max(found, key=lambda kept: kept.draft.count, default=None)

    def keep(self, items: tuple[Item, ...], setting: Setting, draft: Draft, before: KeptDraft | None) -> None:
        """Cache the draft of ``items``, instead of the one ``before`` that it continues."""
        if len(items) < _MIN_ITEMS:
            return
        known, size = (0, 0.0) if before is None else (before.draft.count, before.size)
        size += sum(map(_size, items[known:])) + _ITEM_CHARS * (len(items) - known)
        if size > _MAX_CHARS:
            return
        latest, room = [KeptDraft(items, setting, draft.copy(), size)], _MAX_CHARS - size
        for kept in self._latest:
            if kept is before:
                continue
            room -= kept.size
            if room < 0 or len(latest) == _MAX_DRAFTS:
                break
            latest.append(kept)
        self._latest = tuple(latest)


drafts = Drafts()


def _size(item: Item) -> float:
    """Return the characters of an item's texts; an item with anything else is too large."""
    if type(item) is Call:
        return len(item.arguments)
    if isinstance(item, Message | CallOutput):
        return sum([len(part.text) if type(part) is Text else inf for part in item.parts])
    return len(item.text) if isinstance(item, Thought) else inf
