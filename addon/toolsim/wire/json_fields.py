"""Access to individual fields of JSON that clients and servers send.

*Strict* access is for a client's request. A value of the wrong type results in a 400 error that names the expected and
the actual type in OpenAI's wording. *Lenient* access is for all other JSON. A value of the wrong type counts as absent.
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
    """Return the JSON type of ``value`` with its article, as in OpenAI's messages."""
    return _KINDS.get(type(value), "an object")


def wrong_type(value: object, expected: str, param: str) -> BadRequest:
    """Return the 400 error for a field of the wrong JSON type; ``expected`` includes the article ("a string")."""
    message = f"Invalid type for '{param}': expected {expected}, but got {kind_of(value)} instead."
    return BadRequest(message, param, "invalid_type")


def missing(param: str) -> BadRequest:
    """Return the 400 error for a missing field."""
    return BadRequest(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def expect[T](value: object, kind: type[T], param: str) -> T:
    """Return ``value`` if it has the JSON type ``kind`` (a boolean is not an integer); otherwise raise BadRequest."""
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise wrong_type(value, _KINDS[kind], param)


def required[T](fields: Mapping[str, Any], key: str, kind: type[T], owner: str = "") -> T:
    """Return ``fields[key]``. Raises BadRequest if it is missing, null, or not of the JSON type ``kind``.

    ``owner`` is the path of the object that contains the fields, or "" for the body itself.
    """
    value = fields.get(key)
    if type(value) is kind:
        return value
    if value is None:
        raise missing(_path(owner, key))
    return expect(value, kind, _path(owner, key))


def optional[T](fields: Mapping[str, Any], key: str, kind: type[T], owner: str = "") -> T | None:
    """Return ``fields[key]``, or None if it is absent or null. Raises BadRequest if it has a different JSON type.

    See ``required`` for ``owner``.
    """
    value = fields.get(key)
    return value if value is None or type(value) is kind else expect(value, kind, _path(owner, key))


def _path(owner: str, key: str) -> str:
    return f"{owner}.{key}" if owner else key


# -- lenient access


def string(value: object) -> str:
    """Return the value if it is a string, otherwise ""."""
    return value if isinstance(value, str) else ""


def json_text(value: object) -> str:
    """Return a string unchanged, an object as JSON text, and "" for any other value.

    Some backends send an object where the API requires its JSON text.
    """
    return dump_as_read(value) if isinstance(value, dict) else string(value)


def loaded(text: str) -> Mapping[str, Any] | None:
    """Parse JSON text; return the object that it contains, or None for any other text."""
    try:
        value = load(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def count(counts: Mapping[str, Any], key: str) -> int:
    """Return ``counts[key]``, a number of tokens or an index, or 0 if it is not an integer."""
    value = counts.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def seconds(value: object) -> int | None:
    """Return a number of seconds as an integer, or None for anything but a finite number (JSON can contain ``NaN``)."""
    if isinstance(value, float):
        return int(value) if isfinite(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def array(value: object) -> list[Any]:
    """Return the value if it is an array, otherwise an empty array."""
    return value if isinstance(value, list) else []


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is an object, otherwise an empty object."""
    return value if isinstance(value, dict) else {}


def mappings(values: object) -> list[Mapping[str, Any]]:
    """Return the objects in an array; all other values are ignored."""
    return [value for value in array(values) if isinstance(value, dict)]
