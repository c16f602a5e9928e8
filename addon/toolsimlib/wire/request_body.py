"""A request's body as JSON, without reading the tools and the history again that stood in an earlier one.

``beginnings.py`` has the rules for histories; these are the ones for tools, which a client sends with each of its
requests, and which are most of many. So the last arrays are kept together with their source: where a body goes on with
such a source behind a key ``"tools"``, the array that was read then is taken, the very same object, and only the rest
is parsed.

1. The slow path is the truth: the rest is parsed with a word in the array's place that no client can know. Where this
   word turns out to be the value of the body's own ``tools``, the array takes its place; if it stood anywhere deeper,
   or another value of that name follows, all of the body is parsed.
2. The source of an array ends where any parser would end it: no array is the beginning of another one.
3. Escapes of surrogates, and what is not UTF-8, are for the slow path.
4. Nobody may change an array that is kept. A bounded number of them is.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import isfinite
from typing import Any

from toolsimlib.wire.beginnings import Beginning, Beginnings
from toolsimlib.wire.json_codec import parse_object, spells_surrogates

# Characters of a source: a short one costs next to nothing, a long one much memory.
_MIN_SIZE, _MAX_SIZE = 1_024, 262_144
_MAX_ARRAYS = 32
# A history may hold any number of such keys: where the body's own is not among the first ones, all of it is parsed.
_MAX_KEYS = 8
_NAME = '"tools"'
_VALUE = re.compile(r"[ \t\r\n]*+:[ \t\r\n]*+(?=\[)")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} cannot be written as JSON")
    return number


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


@dataclass(frozen=True, slots=True)
class Source:
    """A kept array's source: the number that no other one gets while this process lives, and its size in characters."""

    number: int
    size: int


class _Arrays:
    """The last arrays, by their sources."""

    def __init__(self, word: str) -> None:
        self._arrays: OrderedDict[str, list[Any]] = OrderedDict()
        self._sources: dict[int, Source] = {}
        self._numbers = count(1)
        self._word = word

    def read(self, text: str) -> dict[str, Any] | None:
        """Return the object that ``text`` is; None: only a parser can tell. Raises ValueError, RecursionError."""
        first = -1
        for at in _places(text):
            first = at if first < 0 else first
            for source in reversed(self._arrays):
                if text.startswith(source, at):
                    self._arrays.move_to_end(source)
                    return self._with(text, at, source, self._arrays[source])
        if first < 0:
            return None
        array, end = _decoder.raw_decode(text, first)
        source = text[first:end]
        document = self._with(text, first, source, array)
        if document is not None and _MIN_SIZE <= len(source) <= _MAX_SIZE:
            self._keep(source, array)
        return document

    def source_of(self, value: object) -> Source | None:
        """Return the source of an array that is kept, None for any other value."""
        return self._sources.get(id(value))

    def _with(self, text: str, at: int, source: str, array: list[Any]) -> dict[str, Any] | None:
        """Return what ``text`` says, if its ``tools`` are the ``array`` whose source stands at ``at``."""
        document = _decoder.decode(f'{text[:at]}"{self._word}"{text[at + len(source) :]}')
        if not isinstance(document, dict) or document.get("tools") != self._word:
            return None
        document["tools"] = array
        return document

    def _keep(self, source: str, array: list[Any]) -> None:
        self._arrays[source] = array
        self._sources[id(array)] = Source(next(self._numbers), len(source))
        if len(self._arrays) > _MAX_ARRAYS:
            _, oldest = self._arrays.popitem(last=False)
            del self._sources[id(oldest)]


def _places(text: str) -> Iterator[int]:
    """Yield where the arrays begin that stand behind a key of the name.

    A string cannot end in front of it, since no comma would follow; but a longer key may end in it, behind an escaped
    quote.
    """
    at = text.find(_NAME)
    for _ in range(_MAX_KEYS):
        if at < 0:
            return
        value = _VALUE.match(text, at + len(_NAME))
        if value is not None and text[at - 1 : at] != "\\":
            yield value.end()
        at = text.find(_NAME, at + len(_NAME))


# They stand for what was cut out: no client can know them.
_TOOLS, _HISTORY = secrets.token_hex(16), secrets.token_hex(16)

_arrays = _Arrays(_TOOLS)
_beginnings = Beginnings()


def _read(text: str) -> dict[str, Any] | None:
    """Return the object that ``text`` is; None: only a parser can tell. Raises ValueError, RecursionError."""
    cut = _beginnings.cut(text, _decoder, _HISTORY)
    if cut is None:
        return _arrays.read(text)
    document = _arrays.read(cut.text)
    if document is None:
        document = _decoder.decode(cut.text)
    if not isinstance(document, dict) or document.get(cut.key) != _HISTORY:
        return None
    document[cut.key] = cut.beginning.items
    _beginnings.keep(cut.beginning)
    return document


def read_body(data: bytes) -> dict[str, Any] | None:
    """Return a request's body as JSON, None where it is none, or holds what Python cannot hold without loss."""
    if data.startswith(b"{") and not spells_surrogates(data):
        try:
            document = _read(data.decode())
        except (ValueError, RecursionError):
            document = None
        if document is not None:
            return document
    return parse_object(data, parse_float=_finite, parse_constant=_finite)


def beginning_of(items: object) -> Beginning | None:
    """Return what is kept with a history, None for any other value."""
    return _beginnings.of(items)


def source_of(value: object) -> Source | None:
    """Return the source of ``tools`` that are kept, None for any other value: equal ones say the same."""
    return _arrays.source_of(value)
