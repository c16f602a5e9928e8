"""Parses and serializes the JSON that clients and servers exchange.

JSON can contain half of a surrogate pair as an escape (``"\\ud83d"``), but UTF-8 cannot. Most halves result from a pair
that a backend split between two deltas; ``Joiner`` joins them. A lone half is not text, and is replaced with U+FFFD
when bytes enter the program. It is also replaced when bytes leave the program, because the JSON inside a model's text
can contain such a half, too.

JSON from outside is read to a depth of ``MAX_DEPTH`` (``load`` and ``too_deep``). Python can parse JSON that is nested
ten times as deeply, but can neither serialize the value nor pass it to another process.

Arguments can arrive as an object instead of text, and can be sent as an object. Python would then write some numbers
with digits different from the model's (``1e5``, or more than 17 digits); ``as_read`` and ``dump_as_read`` retain the
digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate
from json.encoder import encode_basestring
from math import isfinite
from typing import Any

MAX_DEPTH = 512
"""Maximum nesting depth of arrays and objects."""

TOO_DEEP = f"JSON is nested too deeply: expected at most {MAX_DEPTH} levels"

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = [{ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}.get(byte, 0) for byte in range(256)]

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)

LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Characters that some readers treat as line ends although JSON does not, mapped to their escapes."""

spells_surrogates = re.compile(rb"\\u[dD][89a-fA-F]").search
"""Matches JSON that contains an escaped half of a surrogate pair."""


def too_deep(text: str | bytes) -> bool:
    """Return whether JSON is nested more deeply than ``MAX_DEPTH``."""
    if len(text) <= MAX_DEPTH:
        return False
    if isinstance(text, str):
        if text.count("[") + text.count("{") <= MAX_DEPTH:
            return False
        text = text.encode("utf-8", "surrogatepass")
    elif text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRING.sub(b"", text).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH


def load(
    text: str | bytes,
    *,
    parse_float: Callable[[str], Any] | None = None,
    parse_int: Callable[[str], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Parse JSON that toolsim has received. Raises ValueError if the JSON is invalid or nested too deeply."""
    if too_deep(text):
        raise ValueError(TOO_DEEP)
    return json.loads(text, parse_float=parse_float, parse_int=parse_int, parse_constant=parse_constant)


def parse_object(
    data: bytes,
    *,
    parse_float: Callable[[str], Any] | None = None,
    parse_int: Callable[[str], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
) -> dict[str, Any] | None:
    """Return ``data`` as a JSON object, or None if it is not an object, too deep, or not representable in Python.

    Never raises an exception. The other arguments are passed to ``json.loads``; if one of them raises ValueError, the
    result is None.
    """
    try:
        value = load(data, parse_float=parse_float, parse_int=parse_int, parse_constant=parse_constant)
        if spells_surrogates(data):
            text = dump_as_read(value) if parse_float is as_read else dump(value)
            value = json.loads(text, parse_float=parse_float, parse_int=parse_int)
    except ValueError:  # RecursionError is impossible, because the depth was checked.
        return None
    return value if isinstance(value, dict) else None


def unreadable(data: bytes, what: str = "The request body") -> str:
    """Return the reason why ``read_body`` has returned None for ``data``."""
    return f"{what} cannot be read. {TOO_DEEP}." if too_deep(data) else f"{what} is not a JSON object."


def read_body(data: bytes) -> dict[str, Any] | None:
    """Return a request's body as a JSON object, or None if it is not an object or contains a number that Python cannot
    read or reads as infinite.
    """
    return parse_object(data, parse_float=finite, parse_constant=finite)


def finite(text: str) -> float:
    """Parse a number in JSON. Raises ValueError if it is not finite, because it could not be written as JSON."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} cannot be written as JSON")
    return number


class RawJson(float):
    """A number that Python would write with digits different from the original ones. ``text`` contains the original
    digits.
    """

    text: str


def as_read(text: str) -> int | float:
    """Parse a number in JSON. The result is a ``RawJson`` if Python would write it differently."""
    try:
        number: int | float = int(text)
    except ValueError:  # The number is not an integer, or has more digits than Python's limit for integers.
        number = float(text)
    if repr(number) == text:
        return number
    written = RawJson(text)
    written.text = text
    return written


def dump_as_read(value: Any) -> str:
    """Return compact JSON on one line, with the original digits of each number (see ``as_read``)."""
    try:
        return _dump_as_read(value)
    except RecursionError:  # The value is nested too deeply for Python's own functions.
        return dump(value)


def _dump_as_read(value: Any) -> str:
    match value:
        case RawJson():
            return value.text
        case dict():
            members = [f"{dump_string(key)}:{_dump_as_read(item)}" for key, item in value.items()]
            return f"{{{','.join(members)}}}"
        case list():
            return f"[{','.join([_dump_as_read(item) for item in value])}]"
    return dump(value)


def whole_text(text: str) -> str:
    """Return ``text`` with adjacent halves of surrogate pairs joined, and with lone halves replaced with U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class Joiner[Key]:
    """Joins surrogate pairs that are split between two deltas. A ``key`` identifies each text within an answer."""

    def __init__(self) -> None:
        self._halves: dict[Key, str] = {}

    def join(self, key: Key, text: str) -> str:
        """Return ``text``, the next part of the text identified by ``key``, with surrogate pairs joined. If ``text``
        ends with the first half of a surrogate pair, this half is returned with the next part.
        """
        if text.isascii() and not self._halves:
            return text
        text = self._halves.pop(key, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._halves[key], text = text[-1], text[:-1]
        return whole_text(text)

    def end(self, key: Key) -> str:
        """Return U+FFFD if the text of ``key`` ends with the first half of a surrogate pair, otherwise ""."""
        return "\N{REPLACEMENT CHARACTER}" if self._halves.pop(key, "") else ""

    def open_keys(self) -> list[Key]:
        """Return the keys whose text ends with the first half of a surrogate pair."""
        return list(self._halves)


def encode(value: Any) -> str:
    """Return compact JSON like ``dump``, but do not replace lone halves of surrogate pairs."""
    return _encoder.encode(value)


def dump(value: Any) -> str:
    """Return compact JSON on one line."""
    return whole_text(encode(value))


def value_line(value: Any) -> str:
    """Return JSON that every program treats as one line, because unusual line ends are escaped. Lone halves of
    surrogate pairs are not replaced.
    """
    text = encode(value)
    return text if text.isascii() else text.translate(LINE_ENDS)


def dump_string(text: str) -> str:
    """Return ``text`` as a JSON string, including the quotes. This function must be fast, because it is called for
    every delta.
    """
    return encode_basestring(text if text.isascii() else whole_text(text))
