"""Reads text outside untagged calls, and finds the positions at which an untagged call can begin.

| state   | input                            | then                                 |
|---------|----------------------------------|--------------------------------------|
| start   | whitespace that opens the answer | indent                               |
| indent  | the indentation of a line        | a call may begin; if none does, line |
| line    | the rest of the line             | indent                               |
| code    | a code fence without calls       | line, after the closing backticks    |
"""

from __future__ import annotations

import re
from typing import Literal

from toolsim.response.segments import end_of

_SPACE = re.compile(r"\s*+")
_INDENT = re.compile(r"[ \t\r]*+")
_LINE_END_OR_TICK = re.compile(r"[\n`]")

Place = Literal["info", "line", "start"]
"""A position in the text. "info": on the line that opens a code fence; "line": within any other line; "start": at the
start of a line.
"""


class Cursor:
    """A position in text that arrives in chunks.

    ``text``: the current chunk, preceded by text from earlier chunks that has to be read again. ``pos``: the index of
    the next character. ``is_final``: whether this is the end of the text.
    """

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.is_final = False
        self._rest = ""

    @property
    def is_exhausted(self) -> bool:
        """Whether all characters of the current text have been read."""
        return self.pos == len(self.text)

    @property
    def is_waiting(self) -> bool:
        """Whether some text has to be read again together with the next chunk."""
        return bool(self._rest)

    @property
    def char(self) -> str:
        """The next character, or "" at the end of the current text."""
        return self.text[self.pos : self.pos + 1]

    def feed(self, text: str) -> None:
        """Start reading ``text``, preceded by the text that has to be read again."""
        self.text = self._rest + text
        self.pos = 0
        self._rest = ""

    def take(self, end: int) -> str:
        """Return the text up to ``end``, and move to this position."""
        text = self.text[self.pos : end]
        self.pos = end
        return text

    def end_of(self, pattern: re.Pattern[str]) -> int:
        """Return the end of the text that matches ``pattern`` here, or the current position if the pattern does not
        match.
        """
        return end_of(pattern, self.text, self.pos)

    def skip(self, pattern: re.Pattern[str]) -> str:
        """Return the text that matches ``pattern`` here, and move past it. Returns "" if the pattern does not match."""
        return self.take(self.end_of(pattern))

    def wait(self) -> None:
        """Stop reading. The remaining text will be read again together with the next chunk."""
        self._rest = self.take(len(self.text))


class ProseReader:
    """Reads text outside untagged calls. ``has_started``: whether the answer contains visible text so far."""

    def __init__(self) -> None:
        self.state = self.state_start
        self.has_started = False
        self._mark = ""  # The backticks that opened the current code fence, which contains no call.
        self._code = CodeFence("```", "info")

    def __repr__(self) -> str:
        return f"Prose({self.state.__name__})"

    @property
    def is_in_line(self) -> bool:
        """Whether the position is in the middle of a line, where a call cannot begin and a code fence cannot end."""
        return self.state == self.state_line or (self.state == self.state_code and self._code.is_in_line)

    @property
    def is_in_fence(self) -> bool:
        """Whether the text is in a code fence that contains no call."""
        return self.state == self.state_code

    @property
    def is_open(self) -> bool:
        """Whether the current position directly follows text that has been emitted."""
        return self.has_started and self.state in (self.state_line, self.state_indent, self.state_code)

    def read(self, at: Cursor) -> tuple[str, bool]:
        """Return the next text that can be emitted, and whether a call can begin after it.

        If a call can begin there but does not, the caller must call ``resume``.
        """
        state = self.state
        text = at.take(state(at))
        if not self.has_started and state in (self.state_line, self.state_code):
            self.has_started = bool(text) and not text.isspace()
        if at.is_exhausted:
            return text, False
        if self.state == self.state_code:
            at.wait()  # The remaining text may be the line that closes the fence.
        return text, state == self.state_indent

    def resume(self, place: Place, mark: str = "") -> None:
        """Resume reading at ``place``. ``mark``: the opening backticks of a code fence that has just been found to
        contain no call, otherwise "".
        """
        self._mark = mark or self._mark
        if self._mark:
            self._code = CodeFence(self._mark, place)
            self.state = self.state_code
        else:
            self.state = self.state_indent if place == "start" else self.state_line

    def state_start(self, at: Cursor) -> int:
        """Read whitespace at the start of the answer; return the end of the whitespace."""
        end = at.end_of(_SPACE)
        if end < len(at.text):
            self.state = self.state_indent
        return end

    def state_indent(self, at: Cursor) -> int:
        """Read the indentation of a line. A call can begin after the indentation."""
        return at.end_of(_INDENT)

    def state_line(self, at: Cursor) -> int:
        """Read up to the end of the line."""
        end = at.text.find("\n", at.pos) + 1
        if end:
            self.state = self.state_indent
        return end or len(at.text)

    def state_code(self, at: Cursor) -> int:
        """Read up to the end of a code fence that contains no call."""
        end, over = self._code.read(at.text, at.pos, final=at.is_final)
        if over:
            self._mark = ""
            self.state = self.state_line
        return end


class CodeFence:
    """Finds the end of a code fence, so that the content of the fence is not read as a call.

        ```python                    opens the fence, unless another backtick follows on the line
        print("```")                 backticks in the middle of a line are content
        ```                          at least as many backticks, alone on their line, close the fence

    Markdown's rules apply. A fence that is never closed extends to the end of the text. ``mark``: the opening backticks
    or tildes. ``place``: the position at which reading begins (see ``Place``).
    """

    def __init__(self, mark: str, place: Place) -> None:
        self._mark = mark
        self._marks = re.compile(re.escape(mark[0]) + "++")
        self._place = place

    @property
    def is_in_line(self) -> bool:
        """Whether the position is in the middle of a line, where the fence cannot end."""
        return self._place == "line"

    def read(self, text: str, pos: int, *, final: bool) -> tuple[int, bool]:
        """Return the end of the text that can be emitted, and whether the fence ends there.

        The rest of the text must be read again together with the next chunk. If the text is ``final``, nothing has
        to be read again.
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
                pos = end_of(_INDENT, text, pos)
                if pos == len(text):
                    break
                marks = self._marks.match(text, pos)
                if marks is None:
                    self._place = "line"
                    continue
                end = end_of(_INDENT, text, marks.end())
                if end == len(text) and not final:
                    break
                if marks[0].startswith(self._mark) and text[end : end + 1] in ("", "\n"):
                    return end, True
                self._place = "line"
        return pos, False
