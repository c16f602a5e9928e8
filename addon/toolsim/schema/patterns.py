"""Measures clients' regular expressions before they are compiled, and searches within a time budget."""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Any

import regex

from toolsim.schema.errors import SchemaError
from toolsim.schema.validator import running

MAX_ATOMS = 5_000
"""Maximum size, in atoms, of a schema's patterns with all repeats expanded. Compilation takes up to 12 µs and 1 KB per
atom.
"""

_FIRST_SECONDS = 0.001
"""Timeout of the first attempt at a search, in seconds. A search that succeeds on this attempt is charged at most this
much, even if its measured time is longer.
"""

# Matches an atom or bracket of a pattern, with the minimum count of the repeat after it, if any.
_TOKEN = re.compile(
    r"(?P<atom>\\.|\[\^?\]?(?:[^\]\\]|\\.)*+\]|[^()])?(?P<bracket>\((?:\?(?:[:=!>|]|<[=!]|P?<\w+>|[\w-]+:?))?|\))?"
    r"(?:\{(?P<least>\d*)(?:,\d*)?\})?",
    re.DOTALL,
)


def atoms(text: str) -> int:
    """Return the number of atoms in a pattern with each repeat expanded to its minimum.

    A compiler writes out this number of atoms: ``(?:a{1000}){1000}`` has a million, ``a{0,1000}`` has one. The function
    runs in linear time; its result for an invalid pattern is arbitrary.
    """
    # Number of atoms so far in each open group. A repeat after a closing bracket repeats the group that it closes.
    sizes = [0]
    for token in _TOKEN.finditer(text):
        size = 1 if token["atom"] else 0
        match token["bracket"]:
            case None:
                pass
            case ")":
                size += sizes.pop() if len(sizes) > 1 else 0
            case _:
                sizes[-1] += size
                sizes.append(0)
                continue
        sizes[-1] += size * max(_number(token["least"]), 1)
    return sum(sizes)


def _number(digits: str | None) -> int:
    # A longer number exceeds the limit in any case.
    return int(digits[:6]) if digits else 0


def check_pattern(text: str, before: int = 0) -> int:
    """Compile a pattern for later searches and return its size. Raises SchemaError if the pattern cannot be used.

    ``before``: the size of the schema's earlier patterns, which counts toward the limit.
    """
    size = atoms(text)
    if before + size > MAX_ATOMS:
        those = f", in addition to {before} in other patterns of the schema" if before else ""
        raise SchemaError(
            f"the pattern {text[:100]!r} is too large: expected at most {MAX_ATOMS} atoms, got {size}{those}"
        )
    try:
        _compiled(text)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        raise SchemaError(f"the pattern {text[:100]!r} cannot be used: {error}") from error
    return size


@lru_cache(maxsize=512)
def _compiled(text: str) -> Any:
    with warnings.catch_warnings():
        # Ignore warnings about constructs that another version of the engine might interpret differently.
        warnings.simplefilter("ignore")
        return regex.compile(text)


def matches(pattern: str, text: str) -> bool | None:
    """Return whether a pattern matches, or None if the check's remaining budget was not enough for the search."""
    left, compiled = running.get(), _compiled(pattern)
    left.count_step()
    for limit in (min(left.patterns, _FIRST_SECONDS), left.patterns - _FIRST_SECONDS):
        if limit > 0:
            try:
                return compiled.search(text, timeout=limit) is not None
            except TimeoutError:
                pass
            finally:
                left.count_search(limit)
    left.guessed = True
    return None
