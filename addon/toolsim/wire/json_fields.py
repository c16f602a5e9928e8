"""Access to single fields of JSON from outside.

*Strictly*, for a client's request: a value of the wrong type is a 400 that names the expected and the actual type, in
OpenAI's own wording. *Leniently*, for everything else: a wrong value counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from toolsim.core.errors import BadRequest
from toolsim.wire.json_codec import dump_as_read, load

_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def kind_of(value: object) -> str:
    """Name the JSON type of ``value`` with its article, as OpenAI's messages do."""
    return _KINDS.get(type(value), "an object")


def wrong_type(value: object, expected: str, param: str) -> BadRequest:
    """Return the 400 for a field of the wrong JSON type; ``expected`` includes the article ("a string")."""
    message = f"Invalid type for '{param}': expected {expected}, but got {kind_of(value)} instead."
    return BadRequest(message, param, "invalid_type")


def missing(param: str) -> BadRequest:
    """Return the 400 for a missing field."""
    return BadRequest(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def expect[T](value: object, kind: type[T], param: str) -> T:
    """Return ``value`` if it has the JSON type ``kind`` (a boolean is not an integer); otherwise raise BadRequest."""
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise wrong_type(value, _KINDS[kind], param)


def required[T](fields: Mapping[str, Any], key: str, kind: type[T], owner: str = "") -> T:
    """Return ``fields[key]``, which must be present (null counts as missing) and have the JSON type ``kind``.

    ``owner``: the path of the object that has the fields, or "" for the body itself; joined with the key only for an
    error, since a history of 1,000 items has 6,000 fields.
    """
    value = fields.get(key)
    if type(value) is kind:
        return value
    if value is None:
        raise missing(_path(owner, key))
    return expect(value, kind, _path(owner, key))


def optional[T](fields: Mapping[str, Any], key: str, kind: type[T], owner: str = "") -> T | None:
    """Return ``fields[key]``; None if it is absent or null, because clients send both for "not set".

    ``owner`` as in ``required``.
    """
    value = fields.get(key)
    return value if value is None or type(value) is kind else expect(value, kind, _path(owner, key))


def _path(owner: str, key: str) -> str:
    return f"{owner}.{key}" if owner else key


# -- leniently


def string(value: object) -> str:
    """Return the value if it is a string, otherwise ""."""
    return value if isinstance(value, str) else ""


def json_text(value: object) -> str:
    """Return JSON text unchanged, an object (which some backends forget to encode) as JSON text, otherwise ""."""
    return dump_as_read(value) if isinstance(value, dict) else string(value)


def loaded(text: str) -> Mapping[str, Any] | None:
    """Return the object in a JSON text, or None if it is not one."""
    try:
        value = load(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def count(counts: Mapping[str, Any], key: str) -> int:
    """Return a number of tokens, or an index; otherwise 0."""
    value = counts.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def seconds(value: object) -> int | None:
    """Return a time in whole seconds, otherwise None; Python's JSON also reads NaN and Infinity."""
    if isinstance(value, float):
        return int(value) if isfinite(value) else None
    return value if isinstance(value, int) else None


def array(value: object) -> list[Any]:
    """Return an array; an empty one for any other value."""
    return value if isinstance(value, list) else []


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def mappings(values: object) -> list[Mapping[str, Any]]:
    """Return the objects of an array; anything else in it is ignored."""
    return [value for value in array(values) if isinstance(value, dict)]
