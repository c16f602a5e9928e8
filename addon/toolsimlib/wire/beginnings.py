"""The beginnings of histories that were read before: a client repeats its history with each request, and adds to it.

So the last histories are kept together with their source. Where a body goes on with such a source, up to the bracket
that closed the array then, its items are taken, the very same objects, and only those behind them are parsed.

1. Up to its closing bracket the source of an array is a whole number of items, one at least. So a comma behind it and
   one more item, or the bracket, make it the beginning of another array; all else is for a parser.
2. What was made of the items that are kept may be kept with them (``Beginning.read``): the history that goes on from
   them inherits it. Only what depends on nothing behind them is fit for that.
3. Nobody may change an item that is kept. A bounded number of histories is, each of a bounded size.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from json import JSONDecoder
from typing import Any

# Characters of a source: a short one costs next to nothing, a long one much memory.
_MIN_SIZE, _MAX_SIZE = 4_096, 262_144
_MAX_KNOWN = 8
_KEYS = ("messages", "input")
# Characters in which most bodies have come to their history.
_HEAD = 1_024
_VALUE = re.compile(r"[ \t\r\n]*+:[ \t\r\n]*+(?=\[)")


@dataclass(slots=True)
class Beginning:
    """A history that is kept: its items, and their source without the bracket that closes it.

    ``read``: what its reader made of the first so many items, in a shape that is the reader's own.
    """

    source: str
    items: list[Any]
    read: object = None


@dataclass(slots=True)
class Cut:
    """A body without its history, in whose place stands a word: the value of the body's ``key``, if all is well."""

    key: str
    text: str
    beginning: Beginning


class Beginnings:
    """The last histories, by their sources."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Beginning] = OrderedDict()
        self._of_items: dict[int, Beginning] = {}

    def cut(self, text: str, decoder: JSONDecoder, word: str) -> Cut | None:
        """Return the body ``text`` without its history, None where a parser alone can tell, or it is short.

        Raises ValueError, RecursionError.
        """
        if len(text) < _MIN_SIZE or (place := _place(text)) is None:
            return None
        key, at = place
        # A copy: where no worker can be started, a thread does its jobs.
        latest = [*self._known.values()][::-1]
        known = next((each for each in latest if text.startswith(each.source, at)), None)
        if known is None:
            items, end = decoder.raw_decode(text, at)
            beginning = Beginning(text[at : end - 1], items)
        elif text.startswith("]", behind := at + len(known.source)):
            beginning, end = known, behind + 1
        elif text.startswith(",", behind):
            more, length = decoder.raw_decode(f"[{text[behind + 1 :]}")
            if not more:
                return None
            end = behind + length
            beginning = Beginning(text[at : end - 1], [*known.items, *more], known.read)
        else:
            return None
        return Cut(key, f'{text[:at]}"{word}"{text[end:]}', beginning)

    def keep(self, beginning: Beginning) -> None:
        """Keep a history, if it is neither short nor very long, in the place of the one that it goes on from."""
        if not (beginning.items and _MIN_SIZE <= len(beginning.source) <= _MAX_SIZE):
            return
        for source in [each for each in [*self._known] if beginning.source.startswith(each)]:
            self._forget(source)
        self._known[beginning.source] = beginning
        self._of_items[id(beginning.items)] = beginning
        if len(self._known) > _MAX_KNOWN:
            self._forget(next(iter(self._known)))

    def of(self, items: object) -> Beginning | None:
        """Return the history that has these very items, if it is kept."""
        return self._of_items.get(id(items))

    def _forget(self, source: str) -> None:
        if (gone := self._known.pop(source, None)) is not None:
            self._of_items.pop(id(gone.items), None)


def _place(text: str) -> tuple[str, int] | None:
    """Return the key of a history, and where its array begins, as far as that can be told without a parser."""
    for end in (_HEAD, len(text)):
        for key in _KEYS:
            at = text.find(f'"{key}"', 0, end)
            value = _VALUE.match(text, at + len(key) + 2) if at > 0 and text[at - 1] != "\\" else None
            if value is not None:
                return key, value.end()
    return None
