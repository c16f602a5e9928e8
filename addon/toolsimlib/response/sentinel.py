"""The sentinel: finds call blocks in a text that arrives in pieces.

    prose <tool_call>{"name":"f","arguments":"{}"}</tool_call> prose <use_tool><name>f</name></use_tool>

What it may know: the two tags, where a JSON string begins and ends, and how deep the braces nest. It never parses JSON,
never looks at a name, and never decides whether a block is a good call: the judge does.

The rules, by number; the tests name them.

 1. Only the exact opening tag opens a block. What could still become one is held back, and nothing else is.
 2. A block's body begins with ``{`` and then a quote, a ``}`` or a bare key with its colon, with ``[`` and then ``{``
    or ``]``, or as one of the ``dialects`` does. Whitespace may stand before each, a fence's opening line before JSON.
    With anything else the tag was prose: it is released at once.
 3. A tag inside a JSON string is content. Outside one, the closing tag closes the block whatever the depth (a last
    brace may be missing: the judge repairs), and a new opening tag closes it if the JSON is complete. So does a closing
    tag that some other form has (``</function>``): it goes with the block, and with it the right one behind it.
 4. So does the end of the text, if the JSON is complete; half a closing tag then belongs to the block.
 5. Text that is neither JSON nor a small slip in JSON (rule 6) makes the block literal: from its beginning, the first
    closing tag closes it, the first new opening tag ends it. A dialect's body is literal from the start.
 6. Small slips are: trailing commas, control characters and bad escapes in strings, words for values, braces too many.
 7. A block that is not closed was no block: its opening tag is text, and reading goes on right behind that tag, so
    that a later block still counts.
 8. Before the first visible character a ``<think>`` may open; up to its ``</think>`` nothing is a block.
 9. A block (tags not counted) of more than ``limit`` bytes of UTF-8 is given out as ``Oversize`` up to that byte; what
    follows is prose again.
10. Nothing is lost: the pieces, each block as its raw text, are the input.
11. The pieces, joined, do not depend on where the input is cut.

Linear: a piece of text is read again only by rule 7. While a body is read twice, a tag that the first reading saw
inside a string the second one sees outside it (quotes pair up differently), which ends that second block; so no
character is read more than a fixed number of times. Memory is bounded by ``limit``.
"""

from __future__ import annotations

import re
from typing import Literal

from toolsimlib.response.dialects import begins
from toolsimlib.response.foreign_end import foreign_end
from toolsimlib.response.pieces import Block, Fragment, Oversize, Piece, characters_within, utf8_length
from toolsimlib.response.tags import behind_fence, held_from, tags

_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL).match
_PLAIN = re.compile(r"[ \t\r\n,:0-9A-Za-z_.+\-]*+").match
_SPACE = re.compile(r"[ \t\r\n]*+").match
_JSON_SPACE = " \t\r\n"
_BARE_KEY = re.compile(r"[A-Za-z_]\w{0,31}\s{0,8}").match
_THINK = "<think>"
_END_THINK = "</think>"
# Whitespace between an opening tag and its body beyond this is nothing that a model writes: rule 2 then says prose.
_MAX_SPACE = 1024


class Sentinel:
    """The parser. ``feed`` it text, ``finish`` it once; both return pieces. It never raises."""

    def __init__(
        self, tag: str = "tool_call", *, use_tool: bool = True, limit: int = 200_000, fragments: bool = False
    ) -> None:
        self._tags = tags(tag, use_tool)
        self._openings = tuple(self._tags.closing)
        self._limit = limit
        self._fragments = fragments
        self._out: list[Piece] = []
        # The text at hand, and how far it has been read. What is held back of it is put before the next piece.
        self._text = ""
        self._pos = 0
        self._held = ""
        self._final = False
        self.state = self.state_start
        # The open block: where in the text at hand it begins (its opening tag included), and what of it came earlier.
        self._opening = ""
        self._begin = 0
        self._pieces: list[str] = []
        self._size = 0
        self._form: Literal["json", "xml"] = "json"
        # The JSON lexer: last significant character outside strings, nesting depth.
        self._in_string = False
        self._last = ""
        self._depth = 0

    def __repr__(self) -> str:
        return f"Sentinel({self.state.__name__})"

    @property
    def in_block(self) -> bool:
        """Whether a block is open, so that text is being held back for it."""
        return bool(self._opening)

    def feed(self, text: str) -> list[Piece]:
        """Return what ``text`` completes."""
        if self._held:
            text = self._held + text
            self._held = ""
        elif "<" not in text and self.state == self.state_prose:
            return [text] if text else []
        self._text = text
        self._pos = 0
        self._read()
        out, self._out = self._out, []
        return out

    def finish(self) -> list[Piece]:
        """Return what is left at the end of the text. Nothing may be fed after it."""
        self._final = True
        self._text, self._held, self._pos = self._held, "", 0
        self._read()
        while self._opening:
            self._end_of_text()
            self._read()
        out, self._out = self._out, []
        return out

    def _read(self) -> None:
        while self._pos < len(self._text):
            self.state()
        self._text = ""
        self._pos = 0

    # -- outside blocks

    def state_start(self) -> None:
        """Before the first visible character (rule 8)."""
        text = self._text
        at = _SPACE(text, self._pos).end()  # type: ignore[union-attr]  # The pattern matches everywhere.
        if text.startswith(_THINK, at):
            self.state = self.state_think
            at += len(_THINK)
        elif at < len(text) and (self._final or not _THINK.startswith(text[at:])):
            self.state = self.state_prose
        self._say(at)
        if self.state == self.state_start and at < len(text):
            self._hold(at)

    def state_think(self) -> None:
        """Inside ``<think>``: nothing is a block."""
        at = self._text.find(_END_THINK, self._pos)
        if at != -1:
            self.state = self.state_prose
            self._say(at + len(_END_THINK))
        else:
            self._say_unless_held((_END_THINK,))

    def state_prose(self) -> None:
        """Outside blocks: look for an opening tag (rule 1)."""
        match = self._tags.opening.search(self._text, self._pos)
        if match is None:
            self._say_unless_held(self._openings)
            return
        self._say(match.start())
        self._begin = match.start()
        self._pos = match.end()
        self._opening = match[0]
        self._size = -len(match[0])
        self.state = self.state_opened
        if self._pos == len(self._text):
            self._stash(self._pos)

    def _say(self, end: int) -> None:
        if end > self._pos:
            self._out.append(self._text[self._pos : end])
            self._pos = end

    def _say_unless_held(self, words: tuple[str, ...]) -> None:
        end = len(self._text) if self._final else held_from(self._text, self._pos, words)
        self._say(end)
        self._hold(end)

    def _hold(self, at: int) -> None:
        self._held = self._text[at:]
        self._pos = len(self._text)

    # -- inside a block

    def state_opened(self) -> None:
        """Behind an opening tag: wait for what tells a body from prose (rule 2)."""
        text = self._text
        at = _SPACE(text, self._pos).end()  # type: ignore[union-attr]
        if text.startswith("`", at):
            if (behind := behind_fence(text, at, final=self._final)) is None:
                self._stash(at)
                return
            at = behind
        if self._size + at - self._begin > min(_MAX_SPACE, self._limit):
            self._reject()
        elif at == len(text):
            self._stash(at)
        elif text[at] in "{[":
            self._in_string = False
            self._last = text[at]
            self._depth = 1
            self._pos = at + 1
            self.state = self.state_first_token
            if self._pos == len(text):
                self._stash(self._pos)
        else:
            match begins(text, at, behind_tag=self._size + at == self._begin, final=self._final):
                case True:
                    self._pos = at
                    self._form = "xml"
                    self.state = self.state_literal
                case None:
                    self._stash(at)
                case False:
                    self._reject()

    def state_first_token(self) -> None:
        """Behind the body's first brace: its next token decides whether this is a body at all (rule 2)."""
        text = self._text
        at = _SPACE(text, self._pos).end()  # type: ignore[union-attr]
        if at == len(text):
            self._stash(at)
            return
        key = _BARE_KEY(text, at) if self._last == "{" else None
        if key and key.end() == len(text) and not self._final:
            self._stash(at)
        elif text[at] in ("\"'}" if self._last == "{" else "{]") or (key and text.startswith(":", key.end())):
            self._pos = at
            self.state = self.state_json
        else:
            self._reject_at(at)

    def state_json(self) -> None:
        """Inside a JSON body, strings and braces told apart (rules 3 and 6)."""
        text = self._text
        # The text may go far beyond the largest block; to read on behind the limit would be to read it over and over.
        stop = min(len(text), self._begin + self._limit - self._size + 1)
        pos = self._pos
        while pos < stop:
            if self._in_string:
                pos = _STRING(text, pos, stop).end()  # type: ignore[union-attr]
                if pos == stop or text[pos] == "\\":  # The last character at hand: what it escapes is still to come.
                    break
                pos += 1
                self._in_string = False
                self._last = '"'
                continue
            end = _PLAIN(text, pos, stop).end()  # type: ignore[union-attr]
            if end > pos:
                run = text[pos:end].strip(_JSON_SPACE)
                if run:
                    if self._last == '"' and run[0] not in ",:":
                        self._turn_literal(pos)
                        return
                    self._last = run[-1]
                pos = end
                continue
            char = text[pos]
            if char == '"':
                if self._last not in "{[,:":
                    self._turn_literal(pos)
                    return
                self._in_string = True
            elif char in "{[":
                if self._last == '"':
                    self._turn_literal(pos)
                    return
                self._depth += 1
                self._last = char
            elif char in "}]":
                self._depth = max(self._depth - 1, 0)
                self._last = char
            elif char == "<":
                closing = self._tags.closing[self._opening]
                if text.startswith(closing, pos):
                    self._close(pos, pos + len(closing), "json")
                    return
                if text.startswith(self._opening, pos):
                    if self._depth == 0:
                        self._close(pos, pos, "json")
                    else:
                        self._reject_at(pos)
                    return
                if self._depth == 0 and (end := foreign_end(text, pos, closing, final=self._final)):
                    if end < 0:
                        break
                    self._close(pos, end, "json")
                    return
                rest = text[pos : pos + len(closing)]
                if self._final:
                    if self._depth == 0 and closing.startswith(rest):
                        self._close(pos, len(text), "json")
                        return
                elif closing.startswith(rest) or self._opening.startswith(rest):
                    break
                self._turn_literal(pos)
                return
            elif char == "`" and self._depth == 0:
                self._last = char
            else:
                self._turn_literal(pos)
                return
            pos += 1
        self._stash(pos)

    def state_literal(self) -> None:
        """Inside a body that is not JSON: only tags count (rule 5)."""
        text = self._text
        closing = self._tags.closing[self._opening]
        # A tag that begins at the limit is still to be seen whole.
        stop = min(len(text), self._begin + self._limit - self._size + 1 + len(closing))
        match = self._tags.ends[self._opening].search(text, self._pos, stop)
        if match is None:
            whole = self._final or stop < len(text)
            self._stash(stop if whole else held_from(text, self._pos, (closing, self._opening)))
        elif match[0] == closing:
            self._close(match.start(), match.end(), self._form)
        else:
            self._reject_at(match.start())

    def _stash(self, at: int) -> None:
        """Keep the block's text up to ``at``, hold back the rest, and wait for more."""
        piece = self._text[self._begin : at]
        size = self._size + utf8_length(piece)
        if size > self._limit:
            self._overflow(at)
            return
        if self._fragments and self.state != self.state_literal:
            body = piece if self._pieces else piece[len(self._opening) :]
            if body:
                self._out.append(Fragment(body))
        self._size = size
        self._pieces.append(piece)
        self._begin = 0
        self._hold(at)

    def _over(self, at: int) -> bool:
        return self._size + utf8_length(self._text[self._begin : at]) > self._limit

    def _overflow(self, at: int) -> None:
        """Give up a block that is over the limit at ``at`` (rule 9)."""
        raw = self._raw(at)
        end = characters_within(raw, self._limit + len(self._opening))
        self._out.append(Oversize(raw[:end]))
        self._reread(raw, end, at)

    def _close(self, at: int, end: int, form: Literal["json", "xml"]) -> None:
        """Give out the block whose body ends at ``at`` and whose closing tag ends at ``end``."""
        if self._over(at):
            self._overflow(at)
            return
        self._out.append(Block(form, self._opening, self._raw(at)[len(self._opening) :], self._text[at:end]))
        self._leave()
        self._pos = end

    def _reject_at(self, at: int) -> None:
        """Take the open block for prose, because of what was read at ``at`` (rule 7)."""
        if self._over(at):
            self._overflow(at)
        else:
            self._reject()

    def _reject(self) -> None:
        self._out.append(self._opening)
        self._reread(self._raw(self._pos), len(self._opening), self._pos)

    def _turn_literal(self, at: int) -> None:
        """Read the block again from its beginning, now for tags alone (rule 5)."""
        if self._over(at):
            self._overflow(at)
            return
        self._gather(at)
        self._pos = self._begin + len(self._opening)
        self._form = "json"
        self.state = self.state_literal

    def _end_of_text(self) -> None:
        """Decide over a block that the end of the text found open (rules 4 and 7)."""
        self._text, self._held = self._held, ""
        self._pos = 0
        if self.state == self.state_json and self._depth == 0 and not self._in_string:
            self._close(0, len(self._text), "json")
        else:
            self._reject()

    def _raw(self, at: int) -> str:
        return "".join([*self._pieces, self._text[self._begin : at]])

    def _gather(self, at: int) -> None:
        """Bring the whole open block into the text at hand."""
        if self._pieces:
            self._text = self._raw(at) + self._text[at:]
            self._begin = 0
            self._pieces = []
            self._size = -len(self._opening)

    def _reread(self, raw: str, done: int, at: int) -> None:
        """Leave the block; read on as prose behind the first ``done`` characters of ``raw``, its text up to ``at``."""
        if self._pieces:
            self._text = raw[done:] + self._text[at:]
            self._pos = 0
        else:
            self._pos = self._begin + done
        self._leave()

    def _leave(self) -> None:
        self._opening = ""
        self._pieces = []
        self.state = self.state_prose
