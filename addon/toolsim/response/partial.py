"""Pattern matching that also reports whether text could match when more text arrives."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> regex.Pattern[str]:
    import regex  # Imported on first use, because the proxy does not need it to start.

    return regex.compile(pattern)


def match_at(pattern: str, text: str, at: int, *, final: bool = False) -> regex.Match[str] | None:
    """Return the match at ``at``, or None if the text does not match.

    If the text is not ``final``, the match may be partial, which means that more text is needed to complete it.
    """
    return _compiled(pattern).match(text, at, partial=not final)
