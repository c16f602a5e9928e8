"""Plain text on a page: headings, indented paragraphs, quotations with a bar. Linear, whatever is written."""

from __future__ import annotations

import re

WIDTH = 100
"""Columns: what fits into half of a wide window, and what eyes follow."""

_INDENT = "  "
# A word that is longer than a line is cut; white space at a line's end goes.
_LINE = re.compile(rf"(.{{1,{WIDTH}}})(?:[ \t]+|$)|(.{{{WIDTH}}})")


class Page:
    """Collects lines. ``depth`` counts levels of indentation."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def __str__(self) -> str:
        return "\n".join(self._lines).rstrip() + "\n"

    def title(self, name: str, facts: list[str]) -> None:
        """Write the page's first line and what is to know at once, with a rule under it."""
        line = " · ".join([name, *(one_line(fact) for fact in facts if fact)])
        for part in wrap(line):
            self._lines.append(part)
        self._lines.append("─" * WIDTH)

    def heading(self, name: str, remark: str = "") -> None:
        """Begin a section."""
        self.gap()
        self._lines.append(f"{name}  {one_line(remark)}" if remark else name)

    def gap(self) -> None:
        """Leave one line empty, unless the last one is."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def text(self, text: str, depth: int = 1, *, bar: str = "") -> None:
        """Write running text, wrapped; with ``bar`` before each of its lines it is a quotation."""
        lead = _INDENT * depth + bar
        for line in text.split("\n"):
            parts = wrap(line)
            if parts:
                self._lines.extend((lead + part).rstrip() for part in parts)
            else:
                self._lines.append(lead.rstrip())

    def line(self, text: str, depth: int = 1) -> None:
        """Write one line that is not wrapped."""
        self._lines.append(_INDENT * depth + one_line(text))


def wrap(line: str) -> list[str]:
    """Cut one line into lines of at most ``WIDTH`` characters, between words where there are any; keeps indentation."""
    line = line.rstrip().replace("\t", "    ")
    if len(line) <= WIDTH:
        return [line] if line else []
    return [found[1] or found[2] for found in _LINE.finditer(line)]


def one_line(text: str) -> str:
    """Return ``text`` without line ends."""
    return " ".join(text.splitlines())


def clip(text: str, most: int) -> str:
    """Return at most ``most`` characters of ``text`` on one line, with an ellipsis where something was cut off."""
    head = one_line(text[: most + 1])
    return head if len(text) <= most else head[: most - 1] + "…"


def plural(number: int, noun: str) -> str:
    """Return the number with its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
