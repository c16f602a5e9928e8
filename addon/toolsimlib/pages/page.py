"""A page of plain text: headings, indented paragraphs, quotations with a bar. Takes time linear in the text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from toolsimlib.wire.json_codec import whole_text

WIDTH = 84
"""Columns: as many as half a browser window shows, and as eyes can follow."""

_INDENT = "  "
# Not quite empty: mitmweb shows each line as a block of its own, and an empty block has no height.
_EMPTY = " "
_BETWEEN = " · "
_GOES_ON = "↪ "


class Page:
    """Collects lines. ``depth`` counts levels of indentation."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def __str__(self) -> str:
        while self._lines and self._lines[-1] == _EMPTY:
            self._lines.pop()
        # A lone surrogate, which JSON can hold escaped, cannot be shown: no terminal and no browser takes it.
        return whole_text("\n".join(self._lines) + "\n")

    def title(self, name: str, facts: Iterable[str]) -> None:
        """Write the page's first lines: its name and the most important facts."""
        line = name
        for fact in facts:
            if not fact:
                continue
            longer = f"{line}{_BETWEEN}{one_line(fact)}"
            if len(longer) > WIDTH:
                self._lines.append(line)
                longer = " " * len(name) + _BETWEEN + one_line(fact)
            line = longer
        self._lines.append(line)

    def heading(self, name: str, remark: str = "") -> None:
        """Begin a section, with a rule."""
        self.gap()
        line = f"{name}  {one_line(remark)} " if remark else f"{name} "
        self._lines.append(line.ljust(WIDTH, "─"))

    def gap(self) -> None:
        """Leave a line empty, unless the last one is."""
        if self._lines and self._lines[-1] != _EMPTY:
            self._lines.append(_EMPTY)

    def text(self, text: str, depth: int = 1, *, bar: str = "") -> None:
        """Write running text, wrapped; ``bar`` before each of its lines makes it a quotation."""
        lead = _INDENT * depth + bar
        for line in text.split("\n"):
            self._lines += [(lead + part).rstrip() or _EMPTY for part in wrap(line, WIDTH - len(lead))]

    def line(self, text: str, depth: int = 1) -> None:
        """Write one line that is not wrapped."""
        self._lines.append(_INDENT * depth + one_line(text))

    def verbatim(self, text: str) -> None:
        """Write text in its own lines; where a line is too long, an arrow says that its rest follows."""
        for line in text.split("\n"):
            first, *rest = wrap(line, WIDTH - len(_GOES_ON)) if len(line) > WIDTH else [line]
            self._lines += [first or _EMPTY, *(_GOES_ON + part for part in rest)]


def wrap(line: str, width: int = WIDTH) -> list[str]:
    """Cut one line into lines of at most ``width`` characters, between words where there are any; keeps indentation."""
    line = line.rstrip().replace("\t", "    ")
    if len(line) <= width:
        return [line]
    words = line.lstrip(" ")
    lead = " " * min(len(line) - len(words), width // 2)
    return [lead + (found[1] or found[2]).rstrip() for found in _line(width - len(lead)).finditer(words)]


@lru_cache(maxsize=64)
def _line(width: int) -> re.Pattern[str]:
    # Whitespace at the end of a line is dropped. JSON and tags without any also break after a comma and before a
    # closing tag; any other word that is longer than a line is cut.
    return re.compile(rf"(.{{1,{width}}})(?:[ \t]+|$|(?<=,)|(?=</))|(.{{{width}}})", re.DOTALL)


def one_line(text: str) -> str:
    """Return ``text`` without line ends."""
    return " ".join(text.splitlines())


def clip(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of ``text`` on one line, with an ellipsis where something was cut off."""
    head = one_line(text[: limit + 1])
    return head if len(text) <= limit else head[: limit - 1] + "…"


def plural(number: int, noun: str) -> str:
    """Return the number with its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
