"""Calls in JSON whose name or arguments are not where a call has them.

    {"get_weather": {"city": "Bonn"}}               the name as a key; several of them are several calls
    {"name": "get_weather", "city": "Bonn"}         the arguments beside the name

Other JSON may look like that too. So it must be the name of a tool on offer, with parameters that this tool declares
and no others; the caller checks the schema. Anything else is returned as it was read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from toolsimlib.response.written import Json, Written

NAME_AS_KEY = "NAME_AS_KEY"
FLAT_ARGUMENTS = "FLAT_ARGUMENTS"

Parameters = Callable[[str], Collection[str] | None]
"""Returns the names of the parameters of a tool on offer, None if there is no such tool."""


def unwrap(call: Written, parameters: Parameters) -> list[Written]:
    """Return the calls that one object stands for."""
    inner = call.unknown
    if call.broken or not inner or call.arguments is not None or call.aliased:
        return [call]
    if call.name is not None:
        if not _declares(parameters(call.name), inner):
            return [call]
        source = ",".join(f"{json.dumps(key, ensure_ascii=False)}:{value.source}" for key, value in inner.items())
        given = Json(f"{{{source}}}", {key: value.value for key, value in inner.items()})
        return [replace(call, arguments=given, codes=(*call.codes, FLAT_ARGUMENTS), unknown={})]
    if not all(
        isinstance(value.value, dict) and _declares(parameters(key), value.value) for key, value in inner.items()
    ):
        return [call]
    codes = (*call.codes, NAME_AS_KEY)
    return [replace(call, name=key, arguments=value, codes=codes, unknown={}) for key, value in inner.items()]


def _declares(parameters: Collection[str] | None, keys: Iterable[str]) -> bool:
    """Return whether there are keys, and all of them are parameters."""
    return bool(keys) and parameters is not None and set(keys) <= set(parameters)
