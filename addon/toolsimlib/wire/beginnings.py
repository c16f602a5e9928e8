"""The beginnings of histories that were read before: a client repeats its history with each request, and adds to it.

So the last histories are kept (``kept_arrays.py``), with their source up to the bracket that closed the array then.
Where a body goes on with such a source, its items are taken, the very same objects, and only those behind them are
parsed.

1. Up to its closing bracket the source of an array is a whole number of items, one at least. So a comma behind it and
   one more item, or the bracket, make it the beginning of another array; all else is for a parser.
2. What was made of the items that are kept may be kept with them (``KeptArray.read``): the history that goes on from
   them inherits it. Only what depends on nothing behind them is fit for that.
"""

from __future__ import annotations

import re
from json import JSONDecoder

from toolsimlib.wire.kept_arrays import Cut, KeptArray, KeptArrays

histories = KeptArrays(8, 4_096, 262_144)
"""The histories that were read last."""

_KEYS = ("messages", "input")
# Most bodies reach their history within so many characters.
_HEAD = 1_024
_VALUE = re.compile(r"[ \t\r\n]*+:[ \t\r\n]*+(?=\[)")


def cut_history(text: str, decoder: JSONDecoder) -> Cut | None:
    """Return the body ``text`` without its history, None if it is short or needs a parser.

    Raises ValueError, RecursionError.
    """
    if len(text) < histories.smallest or (place := _place(text)) is None:
        return None
    key, at = place
    known = histories.find(text, at)
    if known is None:
        items, end = decoder.raw_decode(text, at)
        history = KeptArray(text[at : end - 1], items)
    elif text.startswith("]", behind := at + known.size):
        history, end = known, behind + 1
    elif text.startswith(",", behind):
        more, length = decoder.raw_decode(f"[{text[behind + 1 :]}")
        if not more:
            return None
        end = behind + length
        history = KeptArray(text[at : end - 1], [*known.array, *more], known.read)
    else:
        return None
    return histories.cut(key, text, at, end, history)


def _place(text: str) -> tuple[str, int] | None:
    """Return the key of a history, and where its array begins, if that can be found without a parser."""
    for end in (_HEAD, len(text)):
        for key in _KEYS:
            at = text.find(f'"{key}"', 0, end)
            value = _VALUE.match(text, at + len(key) + 2) if at > 0 and text[at - 1] != "\\" else None
            if value is not None:
                return key, value.end()
    return None
