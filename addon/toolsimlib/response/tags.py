"""The tags that open and close a block, and how much of a text's end may be the beginning of one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_FENCE = re.compile(r"`{3,8}\w{0,16}[ \t\r]{0,8}\n\s{0,64}").match
_HALF_FENCE = re.compile(r"`{1,8}(?:\w{0,16}[ \t\r]{0,8}(?:\n\s{0,64})?)?\Z").match


@dataclass(frozen=True, slots=True)
class Tags:
    """``closing`` by opening tag; ``opening`` finds any opening tag; ``ends`` by opening tag, what ends its block."""

    closing: dict[str, str]
    opening: re.Pattern[str]
    ends: dict[str, re.Pattern[str]]


@lru_cache(maxsize=16)
def tags(sentinel: str, use_tool: bool) -> Tags:
    """Return the tags of that name, with ``<use_tool>`` or without."""
    names = [sentinel, "use_tool"] if use_tool and sentinel != "use_tool" else [sentinel]
    closing = {f"<{name}>": f"</{name}>" for name in names}
    return Tags(
        closing,
        re.compile("|".join(map(re.escape, closing))),
        {tag: re.compile(f"{re.escape(end)}|{re.escape(tag)}") for tag, end in closing.items()},
    )


def held_from(text: str, start: int, words: tuple[str, ...]) -> int:
    """Return where the longest end of ``text`` that is a proper beginning of one of ``words`` begins, or its length."""
    at = text.find("<", max(start, len(text) - max(map(len, words)) + 1))
    while at != -1:
        rest = text[at:]
        if any(word.startswith(rest) for word in words):
            return at
        at = text.find("<", at + 1)
    return len(text)


def behind_fence(text: str, at: int, *, final: bool) -> int | None:
    """Return where the opening line of a fence at ``at`` ends, ``at`` if none is there, None while that is open."""
    if not final and _HALF_FENCE(text, at):
        return None
    fence = _FENCE(text, at)
    return at if fence is None else fence.end()
