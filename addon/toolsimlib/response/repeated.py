"""Repeated keys: two calls that a model wrote as one object.

    {"city": "Rome", "city": "Oslo"}                    two objects, one city each
    {"unit": "C", "city": "Rome", "city": "Oslo"}       a key that stands once is shared

A JSON parser keeps the last of equal keys and drops the others without a word. Whether several calls are meant, the
schema must tell: the caller sees to that. Values keep their source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from toolsimlib.response.written import Json, read_pairs

REPEATED_KEYS = "REPEATED_KEYS"

_MAX_LENGTH = 4096
"""Calls that collapse into one are short; longer arguments are not read once more for this."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The objects that one object with repeated ``keys`` stands for, in order."""

    keys: tuple[str, ...]
    objects: tuple[Json, ...]


def split_repeated(text: str) -> Repeated | None:
    """Return what an object's text stands for if some of its keys are repeated, each as often; else None."""
    pairs = read_pairs(text, len(text) - len(text.lstrip())) if len(text) <= _MAX_LENGTH else None
    if pairs is None:
        return None
    grouped: dict[str, list[Json]] = {}
    for key, value in pairs[0]:
        grouped.setdefault(key, []).append(value)
    times = max((len(values) for values in grouped.values()), default=0)
    if times < 2 or any(len(values) not in (1, times) for values in grouped.values()):
        return None
    objects: list[Json] = []
    for turn in range(times):
        members = {key: values[turn] if len(values) > 1 else values[0] for key, values in grouped.items()}
        source = ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value.source}" for key, value in members.items())
        objects.append(Json("{" + source + "}", {key: value.value for key, value in members.items()}))
    if all(each.value == objects[0].value for each in objects):
        return None  # The same call, written twice by a slip.
    return Repeated(tuple(key for key, values in grouped.items() if len(values) > 1), tuple(objects))
