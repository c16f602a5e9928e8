"""A request's body as JSON, without parsing tools and history again that an earlier request contained.

``kept_arrays.py`` has the rules for both, ``beginnings.py`` those for histories; the rules below are for tools, which a
client sends with each request, and which are most of many bodies. If a cached source follows a key ``"tools"``, its
array is reused, the very same object, and only the rest is parsed.

1. The slow path is authoritative: an array that is not the value of the body's own key is parsed with all the rest.
2. The source of an array ends where any parser would end it: no array is the beginning of another one.
3. Escaped surrogates, and bytes that are not UTF-8, take the slow path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import isfinite
from typing import Any

from toolsimlib.wire.beginnings import cut_history, histories
from toolsimlib.wire.json_codec import parse_object, spells_surrogates
from toolsimlib.wire.kept_arrays import Cut, KeptArray, KeptArrays

_tools = KeptArrays(32, 1_024, 2_097_152)
_KEY = "tools"
_NAME = f'"{_KEY}"'
# A history may contain any number of such keys: if the body's own is not among the first ones, all of it is parsed.
_MAX_KEYS = 8
_VALUE = re.compile(r"[ \t\r\n]*+:[ \t\r\n]*+(?=\[)")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} cannot be written as JSON")
    return number


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _cut_tools(text: str) -> Cut | None:
    """Return the body ``text`` without its tools, None if it has none. Raises ValueError, RecursionError."""
    first = -1
    for at in _places(text):
        if (cached := _tools.find(text, at)) is not None:
            return _tools.cut(_KEY, text, at, at + cached.size, cached)
        first = at if first < 0 else first
    if first < 0:
        return None
    array, end = _decoder.raw_decode(text, first)
    return _tools.cut(_KEY, text, first, end, KeptArray(text[first:end], array))


def _places(text: str) -> Iterator[int]:
    """Yield the positions of arrays that follow the key.

    A match cannot start at the end of a string, since no comma would follow; but it may be the end of a longer key,
    behind an escaped quote.
    """
    at = text.find(_NAME)
    for _ in range(_MAX_KEYS):
        if at < 0:
            return
        value = _VALUE.match(text, at + len(_NAME))
        if value is not None and text[at - 1 : at] != "\\":
            yield value.end()
        at = text.find(_NAME, at + len(_NAME))


def _read(text: str) -> dict[str, Any] | None:
    """Return ``text`` as an object, None if it needs the slow path. Raises ValueError, RecursionError."""
    history = cut_history(text, _decoder)
    rest = text if history is None else history.text
    tools = _cut_tools(rest)
    if history is None and tools is None:
        return None
    document: dict[str, Any] = _decoder.decode(rest if tools is None else tools.text)
    if tools is not None and not _tools.put_back(tools, document):
        if history is None:
            return None
        document = _decoder.decode(rest)
    return document if history is None or histories.put_back(history, document) else None


def read_body(data: bytes) -> dict[str, Any] | None:
    """Return a request's body as JSON, None if it is not an object, or not representable in Python without loss."""
    if data.startswith(b"{") and not spells_surrogates(data):
        try:
            document = _read(data.decode())
        except (ValueError, RecursionError):
            document = None
        if document is not None:
            return document
    return parse_object(data, parse_float=_finite, parse_constant=_finite)


def beginning_of(items: object) -> KeptArray | None:
    """Return the cache entry of a history, None for any other value."""
    return histories.of(items)


def source_of(value: object) -> KeptArray | None:
    """Return the cache entry of ``tools``, None for any other value; equal numbers mean equal tools."""
    return _tools.of(value)
