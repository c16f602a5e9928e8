"""Measures the size of clients' regular expressions before compiling them, and searches text with them within a time
budget.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Any

import regex

from toolsim.schema.errors import SchemaError
from toolsim.schema.validator import running

MAX_ATOMS = 5_000
"""Maximum size of all patterns in a schema, in atoms, with repeats expanded. Compilation takes up to 12 µs and 1 KB per
atom.
"""

_FIRST_SECONDS = 0.001
"""Timeout for the first attempt at a search, in seconds. If the search succeeds, no more than this time is deducted
from the budget, even if the measured time is longer.
"""

# Matches an atom or a bracket in a pattern, together with the minimum of the repeat that follows (``{3,5}``), if any.
_TOKEN = re.compile(
    r"(?P<atom>\\.|\[\^?\]?(?:[^\]\\]|\\.)*+\]|[^()])?(?P<bracket>\((?:\?(?:[:=!>|]|<[=!]|P?<\w+>|[\w-]+:?))?|\))?"
    r"(?:\{(?P<least>\d*)(?:,\d*)?\})?",
    re.DOTALL,
)


def atoms(text: str) -> int:
    """Return the number of atoms in a pattern, such as characters and classes, with each repeat expanded to its
    minimum.

    The compiled pattern has this size: ``(?:a{1000}){1000}`` has a million atoms, and ``a{0,1000}`` has one. Runs in
    linear time. Its result for an invalid pattern is arbitrary.
    """
    # Number of atoms so far in each open group. A repeat after a closing bracket applies to the group that it closes.
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
    # Six digits are enough, because any longer number exceeds the limit.
    return int(digits[:6]) if digits else 0


def check_pattern(text: str, before: int = 0) -> int:
    """Compile a pattern for later searches, and return its size in atoms. Raises SchemaError if the pattern is invalid
    or too large.

    ``before``: the total size of the schema's other patterns so far, which counts toward the limit.
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
        # The regex package warns about constructs that might have another meaning in a future version.
        warnings.simplefilter("ignore")
        return regex.compile(text)


def matches(pattern: str, text: str) -> bool | None:
    """Return whether ``text`` contains a match for the pattern. Returns None if the check's remaining budget is too
    small for the search.
    """
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
