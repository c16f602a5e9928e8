"""Builds a page of plain text with headings, indented paragraphs, and quotations marked with a bar.

Building a page takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from toolsim.wire.json_codec import whole_text

WIDTH = 84
"""Width of a page in columns. A page of this width fits in half a browser window."""

_INDENT = "  "
# The content of an empty line. mitmweb renders each line as a block, and a block without a space would have no height.
_EMPTY = " "
_SEPARATOR = " · "
_CONTINUATION = "↪ "


class Page:
    """Collects the lines of a page. The methods' parameter ``depth`` is the number of indentation levels."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def __str__(self) -> str:
        while self._lines and self._lines[-1] == _EMPTY:
            self._lines.pop()
        # JSON can contain the escape sequence of a lone surrogate, which terminals and browsers reject.
        return whole_text("\n".join(self._lines) + "\n")

    def title(self, name: str, facts: Iterable[str]) -> None:
        """Write the beginning of the page: its title and the most important facts."""
        line = name
        for fact in facts:
            if not fact:
                continue
            longer = f"{line}{_SEPARATOR}{one_line(fact)}"
            if len(longer) > WIDTH:
                self._lines.append(line)
                longer = " " * len(name) + _SEPARATOR + one_line(fact)
            line = longer
        self._lines.append(line)

    def heading(self, name: str, remark: str = "") -> None:
        """Begin a section with a horizontal rule."""
        self.gap()
        line = f"{name}  {one_line(remark)} " if remark else f"{name} "
        self._lines.append(line.ljust(WIDTH, "─"))

    def gap(self) -> None:
        """Add an empty line, unless the last line is empty."""
        if self._lines and self._lines[-1] != _EMPTY:
            self._lines.append(_EMPTY)

    def text(self, text: str, depth: int = 1, *, bar: str = "") -> None:
        """Write wrapped text. If there is a ``bar``, it precedes each line and marks the text as a quotation."""
        lead = _INDENT * depth + bar
        for line in text.split("\n"):
            self._lines += [(lead + part).rstrip() or _EMPTY for part in wrap(line, WIDTH - len(lead))]

    def line(self, text: str, depth: int = 1) -> None:
        """Write one line that is not wrapped."""
        self._lines.append(_INDENT * depth + one_line(text))

    def verbatim(self, text: str) -> None:
        """Write text with its line breaks. Lines that are too long are wrapped, and an arrow marks the continuation."""
        for line in text.split("\n"):
            first, *rest = wrap(line, WIDTH - len(_CONTINUATION)) if len(line) > WIDTH else [line]
            self._lines += [first or _EMPTY, *(_CONTINUATION + part for part in rest)]


def wrap(line: str, width: int = WIDTH) -> list[str]:
    """Wrap one line at ``width`` characters, between words if possible. The indentation is the same on each line."""
    line = line.rstrip().replace("\t", "    ")
    if len(line) <= width:
        return [line]
    words = line.lstrip(" ")
    lead = " " * min(len(line) - len(words), width // 2)
    return [lead + (found[1] or found[2]).rstrip() for found in _line(width - len(lead)).finditer(words)]


@lru_cache(maxsize=64)
def _line(width: int) -> re.Pattern[str]:
    # Whitespace at the end of a line is dropped. Text without whitespace, such as compact JSON or XML, can also be
    # wrapped after a comma or before a closing tag. Longer words are split.
    return re.compile(rf"(.{{1,{width}}})(?:[ \t]+|$|(?<=,)|(?=</))|(.{{{width}}})", re.DOTALL)


def one_line(text: str) -> str:
    """Return ``text`` with its line breaks replaced by spaces."""
    return " ".join(text.splitlines())


def clip(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of ``text`` on one line, ending in an ellipsis if it was longer."""
    head = one_line(text[: limit + 1])
    return head if len(text) <= limit else head[: limit - 1] + "…"


def plural(number: int, noun: str) -> str:
    """Return the number and the noun, in the singular or plural."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
