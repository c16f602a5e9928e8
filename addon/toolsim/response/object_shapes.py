"""Recognizes JSON objects that represent a call in an unusual shape, or several calls at once.

Calls whose name or arguments are in an unusual position (``unwrap``):

    {"get_weather": {"city": "Bonn"}}               the name as a key; several such keys are several calls: NAME_AS_KEY
    {"name": "get_weather", "city": "Bonn"}         the arguments next to the name: FLAT_ARGUMENTS

Other JSON can have the same shape. Therefore, the name must be the name of an offered tool, and the other keys must be
parameters of this tool. In some calls, the name is the ID of an earlier call, and the actual name is among the
arguments (``name_inside``):

    call_0a1b2c {"name": "get_weather", "city": "Bonn"}     NAME_INSIDE

Several calls that the model has written as a single call (``split_call``):

    {"city": "Rome", "city": "Oslo"}                two calls, with one city each: REPEATED_KEYS
    {"unit": "C", "city": "Rome", "city": "Oslo"}   the unit belongs to both calls
    {"city": "Rome", "city2": "Oslo"}               also two calls, if the tool has no parameter ``city2``
    {"city": ["Rome", "Oslo"]}                      also two calls, if the parameter accepts no list: LISTED_VALUES

Without the split, a JSON parser would keep the last of several equal keys and silently drop the others. In each of
these cases, the caller checks whether the schema allows the split. Values are not reformatted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from toolsim.response.parsed_call import Json, ParsedCall, json_object, read_items, read_json, read_object, read_pairs
from toolsim.schema.validator import Validator

NAME_AS_KEY = "NAME_AS_KEY"
NAME_INSIDE = "NAME_INSIDE"
FLAT_ARGUMENTS = "FLAT_ARGUMENTS"
REPEATED_KEYS = "REPEATED_KEYS"
LISTED_VALUES = "LISTED_VALUES"

Parameters = Callable[[str], Collection[str] | None]
"""Returns the parameter names of an offered tool, or None if there is no such tool."""

_CALL_ID = re.compile(r"(?:call|fc|toolu|chatcmpl-tool)[_-]\w+")
_NUMBERED = re.compile(r"_?\d{1,2}\Z")

_MAX_LENGTH = 4096
"""Maximum length of arguments that can be split, in characters. Real calls that have to be split are short."""


def unwrap(call: ParsedCall, parameters: Parameters, *, marked: bool = False) -> list[ParsedCall]:
    """Return the calls that one object represents. Usually, this is only ``call`` itself.

    ``marked``: whether the object is in a tagged block, in which case the arguments may be empty.
    """
    inner = call.unknown
    if call.broken or not inner or call.given is not None:
        return [call]
    if call.name is not None:
        if not _declares(parameters(call.name), inner):
            return [call]
        return [replace(call, given=json_object(inner), codes=(*call.codes, FLAT_ARGUMENTS), unknown={})]
    for key, value in inner.items():
        is_empty = marked and value.value == {} and parameters(key) is not None
        if not isinstance(value.value, dict) or not (is_empty or _declares(parameters(key), value.value)):
            return [call]
    codes = (*call.codes, NAME_AS_KEY)
    return [replace(call, name=key, given=value, codes=codes, unknown={}) for key, value in inner.items()]


def name_inside(call: ParsedCall) -> ParsedCall:
    """Return the call in the arguments of a call whose name is an ID. Return any other call unchanged."""
    given = call.given
    if call.broken or not isinstance(given, Json) or call.name is None or not _CALL_ID.fullmatch(call.name):
        return call
    text = given.value if isinstance(given.value, str) else given.source
    members, _ = read_object(text, len(text) - len(text.lstrip())) or ({}, 0)
    match members.pop("name", None):
        case Json(value=str() as name):
            whole = members.get("arguments")
            arguments = whole if whole is not None and len(members) == 1 else json_object(members)
            return replace(call, name=name, given=arguments, codes=(*call.codes, NAME_INSIDE))
    return call


def _declares(parameters: Collection[str] | None, keys: Iterable[str]) -> bool:
    """Return whether a tool has all of these ``keys`` as parameters. Returns False if there are no keys."""
    return bool(keys) and parameters is not None and set(keys) <= set(parameters)


def split_call(
    written: ParsedCall,
    schema: Validator | None,
    *,
    accepts: Callable[[ParsedCall], bool],
    fits: Callable[[Any], bool],
) -> list[ParsedCall]:
    """Return the calls that the model has written as a single call to a function tool. Usually, there is only one.

    ``schema``: the schema of the arguments, or None if the schema or the arguments are missing. ``accepts``: returns
    whether a call is certainly valid. ``fits``: returns whether arguments match the schema.
    """
    calls = [read_json(part.source, closed=True, repair=True)[0] for part in split_repeated(written.source)]
    if calls and all(accepts(call) for call in calls):
        return [replace(call, codes=(*call.codes, REPEATED_KEYS)) for call in calls]
    given = written.given
    if schema is None or not isinstance(given, Json):
        return [written]
    code, parts = split_arguments(given.value if isinstance(given.value, str) else given.source, schema)
    if not parts or not all(fits(part.value) for part in parts):
        return [written]
    return [replace(written, given=part, codes=(*written.codes, code)) for part in parts]


def split_repeated(text: str) -> list[Json]:
    """Split an object with repeated keys into several objects, one for each occurrence of the keys.

    Returns [] if no key is repeated, or if the repeated keys do not occur equally often.
    """
    return _spread(_grouped(_pairs(text)))


def split_arguments(text: str, schema: Validator) -> tuple[str, list[Json]]:
    """Split arguments that represent several calls according to ``schema``.

    Returns the code of the repair and the arguments of each call, or an empty list if the text cannot be split.

    If a key such as ``city2`` is not in the schema, but ``city`` is, the key counts as a repeated ``city``, unless the
    schema allows additional keys. Only keys in the schema that accept no list can have several values.
    """
    pairs = _pairs(text)
    schemas = {key: schema.property(key) for key, _ in pairs}
    takes_all = schema.takes_unnamed()
    named = [(key if schemas[key] or takes_all else _plain(key, schema), value) for key, value in pairs]
    types = {key: found.types() for key, _ in named if (found := schema.property(key)) is not None}
    grouped = _grouped(named)
    if parts := _spread(grouped):
        repeated = [key for key, values in grouped.items() if len(values) > 1]
        takes_one = all(key in types and "array" not in types[key] for key in repeated)
        return REPEATED_KEYS, parts if takes_one else []
    listed = {
        key: read_items(value.source, 0) or [value] if types.get(key) and "array" not in types[key] else [value]
        for key, value in named
        if isinstance(value.value, list)
    }
    return LISTED_VALUES, _spread({key: listed.get(key, [value]) for key, value in named})


def _plain(key: str, schema: Validator) -> str:
    plain = _NUMBERED.sub("", key)
    return key if schema.property(plain) is None else plain


def _pairs(text: str) -> list[tuple[str, Json]]:
    read = read_pairs(text, len(text) - len(text.lstrip())) if len(text) <= _MAX_LENGTH else None
    return [] if read is None else read[0]


def _grouped(pairs: list[tuple[str, Json]]) -> dict[str, list[Json]]:
    grouped: dict[str, list[Json]] = {}
    for key, value in pairs:
        grouped.setdefault(key, []).append(value)
    return grouped


def _spread(grouped: Mapping[str, list[Json]]) -> list[Json]:
    """Return one object for each value of the repeated keys. Keys with a single value are included in every object.

    Returns [] if no key has several values, if the keys have different numbers of values, or if all objects would be
    equal.
    """
    times = max((len(values) for values in grouped.values()), default=0)
    if times < 2 or any(len(values) not in (1, times) for values in grouped.values()):
        return []
    objects: list[Json] = []
    for index in range(times):
        members = {key: values[index] if len(values) > 1 else values[0] for key, values in grouped.items()}
        source = ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value.source}" for key, value in members.items())
        objects.append(Json("{" + source + "}", {key: value.value for key, value in members.items()}))
    if all(item.value == objects[0].value for item in objects):
        return []  # The values are equal, so the model wrote the same call twice by mistake.
    return objects
