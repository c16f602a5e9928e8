"""Patterns that also tell whether a text that does not match may do so once more of it has arrived."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> regex.Pattern[str]:
    import regex  # on demand: the first marker needs it, and no start of the proxy

    return regex.compile(pattern)


def match_at(pattern: str, text: str, at: int, *, final: bool = False) -> regex.Match[str] | None:
    """Return the match at ``at``: a partial one if it depends on what follows the text, unless that is ``final``."""
    return _compiled(pattern).match(text, at, partial=not final)
