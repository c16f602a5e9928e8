"""A fence that holds no call: finds its end, so that nothing in it is taken for a call.

    ```python                    the opening mark and its line; with a backtick in it, it was inline code, not a fence
    print("```")                 a mark in the middle of a line is content
    ```                          a mark at least as long, alone on its line, closes it

These are Markdown's rules. A fence that is never closed extends to the end of the text.
"""

from __future__ import annotations

import re
from typing import Literal

Place = Literal["info", "line", "start"]

_INDENT = re.compile(r"[ \t\r]*+")
_LINE_END_OR_TICK = re.compile(r"[\n`]")


class CodeFence:
    """One open fence. ``place``: in the line of the opening ``mark``, in another line, or at the start of one."""

    def __init__(self, mark: str, place: Place) -> None:
        self._mark = mark
        self._marks = re.compile(re.escape(mark[0]) + "++")
        self._place = place

    def read(self, text: str, pos: int, *, final: bool) -> tuple[int, bool]:
        """Return up to where the text can be emitted, and whether the fence ends there.

        What is left must be read again together with what follows; if the text is ``final``, nothing is left.
        """
        while pos < len(text):
            if self._place == "info":
                found = _LINE_END_OR_TICK.search(text, pos)
                if found and found[0] == "`" and self._mark[0] == "`":
                    return found.start(), True
                pos, self._place = (found.end(), "start") if found else (len(text), "info")
            elif self._place == "line":
                at = text.find("\n", pos)
                pos, self._place = (at + 1, "start") if at != -1 else (len(text), "line")
            else:
                match = _INDENT.match(text, pos)
                pos = match.end() if match else pos
                if pos == len(text):
                    break
                marks = self._marks.match(text, pos)
                if marks is None:
                    self._place = "line"
                    continue
                match = _INDENT.match(text, marks.end())
                end = match.end() if match else marks.end()
                if end == len(text) and not final:
                    break
                if marks[0].startswith(self._mark) and text[end : end + 1] in ("", "\n"):
                    return end, True
                self._place = "line"
        return pos, False
