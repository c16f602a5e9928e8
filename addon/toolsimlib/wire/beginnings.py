"""Cached beginnings of histories: a client repeats its history with each request, and adds to it.

The latest histories are cached (``kept_arrays.py``), with their source up to the bracket that closed the array. If a
body contains such a source, the cached items are reused, the very same objects, and only the items behind them are
parsed.

1. Up to its closing bracket the source of an array is a whole number of items, at least one. So if a comma and one more
   item follow it, or the bracket, it is the beginning of another array; anything else needs a parser.
2. What a reader made of the cached items may be cached with them (``KeptArray.read``): the history that continues them
   inherits it. This suits only results that do not depend on later items.
"""

from __future__ import annotations

import re
from json import JSONDecoder

from toolsimlib.wire.kept_arrays import Cut, KeptArray, KeptArrays

histories = KeptArrays(32, 4_096, 2_097_152)
"""The latest ones."""

_KEYS = ("messages", "input")
# Characters within which the history of most bodies begins.
_HEAD = 1_024
_VALUE = re.compile(r"[ \t\r\n]*+:[ \t\r\n]*+(?=\[)")


def cut_history(text: str, decoder: JSONDecoder) -> Cut | None:
    """Return the body ``text`` without its history, None if it is short or needs a parser.

    Raises ValueError, RecursionError.
    """
    if len(text) < histories.smallest or (place := _place(text)) is None:
        return None
    key, at = place
    cached = histories.find(text, at)
    if cached is None:
        items, end = decoder.raw_decode(text, at)
        history = KeptArray(text[at : end - 1], items)
    elif text.startswith("]", behind := at + cached.size):
        history, end = cached, behind + 1
    elif text.startswith(",", behind):
        more, length = decoder.raw_decode(f"[{text[behind + 1 :]}")
        if not more:
            return None
        end = behind + length
        history = KeptArray(text[at : end - 1], [*cached.array, *more], cached.read)
    else:
        return None
    return histories.cut(key, text, at, end, history)


def _place(text: str) -> tuple[str, int] | None:
    """Return the key of the history and the position of its array, if they can be found without a parser."""
    for end in (_HEAD, len(text)):
        for key in _KEYS:
            at = text.find(f'"{key}"', 0, end)
            value = _VALUE.match(text, at + len(key) + 2) if at > 0 and text[at - 1] != "\\" else None
            if value is not None:
                return key, value.end()
    return None
