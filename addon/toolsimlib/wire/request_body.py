"""A request's body as JSON, without parsing the tools and the history again that stood in an earlier one.

``kept_arrays.py`` has the rules for both, ``beginnings.py`` those for histories; these are the ones for tools, which a
client sends with each of its requests, and which are most of many. Where a source that is kept stands behind a key
``"tools"``, the array that was read then is taken, the very same object, and only the rest is parsed.

1. The slow path is the truth: whatever stood anywhere but in its own place in the body is parsed with all the rest.
2. The source of an array ends where any parser would end it: no array is the beginning of another one.
3. Escapes of surrogates, and what is not UTF-8, are for the slow path.
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

_tools = KeptArrays(32, 1_024, 262_144)
_KEY = "tools"
_NAME = f'"{_KEY}"'
# A history may hold any number of such keys: if the body's own is not among the first ones, all of it is parsed.
_MAX_KEYS = 8
_VALUE = re.compile(r"[ \t\r\n]*+:[ \t\r\n]*+(?=\[)")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} cannot be written as JSON")
    return number


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _cut_tools(text: str) -> Cut | None:
    """Return the body ``text`` without its tools, None if it shows none. Raises ValueError, RecursionError."""
    first = -1
    for at in _places(text):
        if (known := _tools.find(text, at)) is not None:
            return _tools.cut(_KEY, text, at, at + known.size, known)
        first = at if first < 0 else first
    if first < 0:
        return None
    array, end = _decoder.raw_decode(text, first)
    return _tools.cut(_KEY, text, first, end, KeptArray(text[first:end], array))


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


def _read(text: str) -> dict[str, Any] | None:
    """Return the object that ``text`` is; None: it needs a parser. Raises ValueError, RecursionError."""
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
    """Return a request's body as JSON, None if it is not an object, or holds what Python cannot hold without loss."""
    if data.startswith(b"{") and not spells_surrogates(data):
        try:
            document = _read(data.decode())
        except (ValueError, RecursionError):
            document = None
        if document is not None:
            return document
    return parse_object(data, parse_float=_finite, parse_constant=_finite)


def beginning_of(items: object) -> KeptArray | None:
    """Return the entry of a history, None for any other value."""
    return histories.of(items)


def source_of(value: object) -> KeptArray | None:
    """Return the entry of ``tools``, None for any other value: those with one number are the same."""
    return _tools.of(value)
