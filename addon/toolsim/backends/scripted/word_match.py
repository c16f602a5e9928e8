"""Compares words for the scripted model. The words are in lowercase, and their endings are ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Minimum number of letters that two similar words have in common at the beginning. These must be all letters of the
# shorter word, except perhaps its last one. For example, note and notes are similar, and so are translate and
# translation, but not city and cite.
_MIN_STEM = 4

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a about all also an and any are as at be by can could do does find for from get give has have how i
        if in is it let make me my near not of on or please set show some tell that the them then there this
        to us use want was we what when where which who will with would you your
        """,
    )
)
"""Words that do not indicate the topic of a sentence."""


def words(text: str) -> list[str]:
    """Return the words in text or in a name, in lowercase. For example, ``getWeather_v2`` has get, weather and v2."""
    humps = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return re.findall(r"[^\W_]+", humps.lower())


def is_alike(one: str, other: str) -> bool:
    """Return whether two words differ only in their ending."""
    stem = max(_MIN_STEM, min(len(one), len(other)) - 1)
    return one == other or (min(len(one), len(other)) >= stem and one[:stem] == other[:stem])


def shared(wanted: Iterable[str], among: Iterable[str]) -> set[str]:
    """Return the words in ``wanted`` that are similar to a word in ``among``. Stop words are ignored."""
    others = set(among)
    return {word for word in wanted if word not in STOP_WORDS and any(is_alike(word, other) for other in others)}
