"""Calls without the tag: found in the text that the sentinel takes for prose, and held against the judge.

Many models never write a tag that they were not trained on, however they are asked: the call is right, and stands bare
or in a code fence. What counts here, in addition to a tagged block:

    unit  := fence | bare
    fence := "```" ["json" | "tool_call" | "tool_code" | "xml" | "python"] NEWLINE form+ "```" NEWLINE
    bare  := form+ NEWLINE                     nothing else on its lines; "," or ";" may stand between forms
    form  := object | array | syntax | record | list | braces
    object, array                              JSON: {"name": …, "arguments": …}, {"tool_calls": […]}, [{…}, {…}]
    syntax := name(…)                          see call_syntax; in a fence of code printed or assigned: see statement
    list  := [name(…), …]; braces := name{…}   what is left of some models' own forms: see opening
    record := [function_call … name=… arguments=…]

 1. A unit counts only if all its forms are calls to tools on offer whose arguments fit the tool's schema, strict or
    not. One that does not, and all of the unit is text. Nothing here is ever a violation.
 2. A unit counts only at the start of the answer, or at its end: what stands in the middle of other text is talk about
    calls. Several units with whitespace between them stand together. A fence of Python must be the whole answer.
 3. Nothing counts in a thought (``<think>``), in a sentence, in inline code, or in a fence of another language.
 4. Only what may still become a unit is held back: at the start of a line ``{``, ``[``, a fence, and a name on offer
    with its parenthesis. It is released as soon as it can be none: at a fence's language, at the first key or name
    that no call has, at any character that the form cannot hold.
 5. A unit at the end of the text so far is held until what follows tells where it stands.
 6. A unit of more than ``limit`` characters is text.
 7. What was released is not read again, so no text is read twice; inside a rejected form nothing counts.
 8. A fence around tagged blocks goes with them: its two lines are given out as ``FenceMark``.
 9. Nothing is lost: the pieces, each as its raw text, are the input. Where it is cut does not matter.
10. A list that repeats one call, up to where the backend cut it off or without end, is over there (``same_call``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolsimlib.response.code_fence import CodeFence, Place
from toolsimlib.response.form import Form, end_of
from toolsimlib.response.held import Calls, FenceMark, Held
from toolsimlib.response.judge import Judge
from toolsimlib.response.opening import CODE, MARK, TAUGHT, begin_nothing, language_at, may_begin, opening_at
from toolsimlib.response.pieces import Fragment
from toolsimlib.response.pieces import Piece as TaggedPiece
from toolsimlib.response.sentinel import Sentinel
from toolsimlib.response.statement import Statement

_THINK = "<think>"
_END_THINK = "</think>"
_INDENT = re.compile(r"[ \t\r]*+")
_SPACE = re.compile(r"\s*+")
_AT_LINE_START = re.compile(r"\n[ \t\r]*+\Z")

Piece = TaggedPiece | Calls | FenceMark


class Untagged:
    """The parser of untagged calls around the sentinel. ``feed`` it text, ``finish`` it once; it never raises."""

    def __init__(self, sentinel: Sentinel, judge: Judge, *, limit: int = 200_000, repair: bool = True) -> None:
        self._sentinel, self._judge = sentinel, judge
        self.grows = sentinel.grows  # What lengthens a tagged block means nothing here.
        self._names = sorted(judge.names)
        self._limit, self._repair = limit, repair
        self._out: list[Piece] = []
        # The text at hand, how far it has been read, and what of it must be read again with more text behind it.
        self._text, self._pos, self._rest = "", 0, ""
        self._final = False
        self._passes = False  # Whether text that begins nothing needs no reading.
        self._may_begin = may_begin(self._names)
        self._said = False  # Whether anything visible was given out: rule 2's start of the answer is over.
        self.state, self._held = self.state_start, Held()
        self._form = Form("json", judge.offers)  # The form that is being read.
        self._code = CodeFence("```", "info")  # The fence of code that is open.
        self._mark = ""  # The opening mark of the open fence, "" outside of one.
        self._statement: Statement | None = None  # What stands around the calls in the open fence of code.
        self._is_taught = False  # Whether the run of units holds a fence of Python (rule 2).

    def __repr__(self) -> str:
        return f"Untagged({self.state.__name__}, {self._sentinel})"

    @property
    def in_block(self) -> bool:
        """Whether text is being held back because it may be a call."""
        return self._sentinel.in_block or bool(self._held)

    def feed(self, text: str) -> list[Piece]:
        """Return what ``text`` completes."""
        pieces = self._sentinel.feed(text)
        if self._passes and "\n" not in text and (not pieces or pieces[0] is text):
            return pieces  # type: ignore[return-value]  # A list of fewer kinds, which nobody else holds.
        return self._take(pieces)

    def passes(self, texts: Sequence[str]) -> int:
        """Return how many of ``texts``, from the first on, are prose that begins nothing: they need not be fed."""
        count = self._sentinel.passes(texts) if self._passes else 0
        return begin_nothing(texts[:count], self._may_begin) if count else 0

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """Return what is left at the end of the text. Nothing may be fed after it. ``cut``: as for the sentinel."""
        out = self._take(self._sentinel.finish(cut=cut))
        self._form.was_cut = cut
        self._end_of_prose()
        if self.state == self.state_form and self._form.lacks_end:
            self._take_form()
        if self.state in (self.state_behind_form, self.state_behind_fence):
            self._end_unit()
        self._reject()
        self._end_run(last=True)
        return out + self._out

    def _take(self, pieces: list[TaggedPiece]) -> list[Piece]:
        for piece in pieces:
            if isinstance(piece, str):
                self._read(piece)
            elif self.state == self.state_form and self._form.is_in_string:  # What looks like a block is content.
                self._read("" if isinstance(piece, Fragment) else piece.raw)
            else:
                self._block_begins()
                self._out.append(piece)
        self._passes = self._said and self.state == self.state_prose
        out, self._out = self._out, []
        return out

    def _read(self, text: str) -> None:
        self._text, self._rest, self._pos = self._rest + text, "", 0
        while self._pos < len(self._text):
            self.state()

    def _end_of_prose(self) -> None:
        """Read what waits for more text, since none follows it."""
        self._final = True
        self._read("")
        self._final = False

    def _block_begins(self) -> None:
        """Decide over what is held back where the sentinel has found a block (or the beginning of one)."""
        self._end_of_prose()
        if self.state == self.state_before_form:
            mark, self._statement = self._held.take_open(), None
            self._end_run()
            self._out.append(FenceMark(mark, opening=True))
            self.state = self.state_behind_block
        elif self.state == self.state_behind_block:
            self._out += filter(None, [self._held.take_tail()])
        else:
            if self.state == self.state_behind_fence or (self.state == self.state_behind_form and self._is_whole):
                self._end_unit()
            self._reject()
            self._end_run()
            self._go_on_as_text("line")
        self._said = True

    # -- text

    def state_start(self) -> None:
        """Before the first visible character; a thought may stand there (rule 3)."""
        text = self._text
        at = end_of(_SPACE, text, self._pos)
        # The sentinel never cuts these tags: it holds them back until they are whole.
        if text.startswith(_THINK, at):
            self.state = self.state_think
        elif at < len(text):
            self.state = self.state_line
        self._say(at)

    def state_think(self) -> None:
        """In a thought: nothing is a call."""
        at = self._text.find(_END_THINK, self._pos)
        end = len(self._text)
        if at != -1:
            end = at + len(_END_THINK)
            self.state = self.state_start
        self._out.append(self._text[self._pos : end])
        self._pos = end

    def state_line(self) -> None:
        """At the start of a line, where a unit may begin (rule 4)."""
        self._say(end_of(_INDENT, self._text, self._pos))
        if self._pos < len(self._text) and not self._begin():
            self.state = self.state_prose

    def state_prose(self) -> None:
        """In a line of text."""
        at = self._text.find("\n", self._pos)
        if at != -1:
            self.state = self.state_line
        self._say(at + 1 or len(self._text))

    def state_code(self) -> None:
        """In a fence that holds no call (rule 3)."""
        end, over = self._code.read(self._text, self._pos, final=self._final)
        self._say(end)
        if over:
            self._mark = ""
            self.state = self.state_prose
        elif self._pos < len(self._text):
            self._wait()

    # -- units

    def state_language(self) -> None:
        """Behind the opening mark of a fence: its language tells whether it may hold a call."""
        language = language_at(self._text, self._pos, final=self._final)
        if language == "more":
            self._wait()
        elif language is None or (language[0] in TAUGHT and self._said):
            self._reject()
            self._go_on_as_text("info")
        else:
            self._statement = Statement() if language[0] in CODE else None
            self._is_taught = self._is_taught or language[0] in TAUGHT
            self._keep(language[1])
            self.state = self.state_before_form

    def state_before_form(self) -> None:
        """In a fence, before its first form."""
        self._keep(end_of(_SPACE, self._text, self._pos))
        if self._held.size > self._limit or (self._pos < len(self._text) and not self._begin()):
            self._reject()

    def state_form(self) -> None:
        """In a form."""
        stop = min(len(self._text), self._pos + self._limit - self._held.size)
        end, is_form = self._form.read(self._text, self._pos, stop)
        self._keep(end)
        if is_form:
            self._take_form()
        elif is_form is False or stop < len(self._text) or (end < stop and self._final):
            self._reject()
        elif end < stop:
            self._wait()

    def _take_form(self) -> None:
        """Ask the judge about the form that is whole."""
        calls = self._judge.untagged(*self._form.calls())
        self._held.calls += calls or []
        self.state = self.state_behind_form
        if calls is None:
            self._reject()

    def state_behind_form(self) -> None:
        """Behind a form: another one may follow; what else does tells whether the unit stands alone on its lines."""
        if self._form.is_loop:
            self._end_unit()
            self._end_run(last=True)
            self.state = self.state_prose
            return
        if self._hold_space():
            return
        if self._statement is not None and self._statement.is_open:
            end = self._statement.behind(self._text, self._pos)
            self._keep(end) if end > self._pos else self._reject()
        elif self._text[self._pos] in ",;":
            self._keep(self._pos + 1)
        elif self._mark and self._text[self._pos] == "`":
            if (end := self._closing_mark()) > self._pos:
                self._keep(end)
                self._mark = ""
                self.state = self.state_behind_fence
            elif not end:
                self._reject()
        elif not self._begin():
            self._end_unit() if self._is_whole else self._reject()

    def state_behind_fence(self) -> None:
        """Behind the closing mark of a fence: nothing else may stand on its line."""
        end = end_of(_INDENT, self._text, self._pos)
        self._held.keep_tail(self._text[self._pos : end])
        self._pos = end
        if self._pos < len(self._text):
            self._end_unit() if self._text[self._pos] == "\n" else self._reject()

    def state_between(self) -> None:
        """Behind a unit: another one may follow, or the end of the answer (rule 5)."""
        end = end_of(_SPACE, self._text, self._pos)
        self._held.space(self._text[self._pos : end])
        self._pos = end
        if self._held.size > self._limit or (self._pos < len(self._text) and not self._begin()):
            self._end_run()
            self.state = self.state_line

    def state_behind_block(self) -> None:
        """In a fence around tagged blocks, behind one of them (rule 8)."""
        if self._hold_space():
            return
        if (end := self._closing_mark()) > self._pos:
            self._out.append(FenceMark(self._held.take_tail() + self._text[self._pos : end], opening=False))
            self._mark = ""
            self._pos = end
            self.state = self.state_prose
        elif not end:
            self._out += filter(None, [self._held.take_tail()])
            self._go_on_as_text("line")

    def _closing_mark(self) -> int:
        """Return where the mark ends that closes the fence here, 0 if none does; or wait until that can be told."""
        mark = MARK.match(self._text, self._pos)
        if mark is not None and mark.end() == len(self._text) and not self._final:
            self._wait()
            return -1
        return mark.end() if mark is not None and mark[0].startswith(self._mark) else 0

    def _begin(self) -> bool:
        """Begin the form or the fence that stands here, or wait until that can be told; False: neither stands here."""
        at: int | None = self._pos
        if self._statement is not None:
            at = self._statement.before(self._text, self._pos, final=self._final)
        opening = "more" if at is None else opening_at(self._text, at, self._names, final=self._final)
        if opening == "more":
            self._wait()
        elif opening == "syntax" or (opening and opening != "fence" and opening != "code" and at == self._pos):
            self._held.join_tail()
            self._keep(at or self._pos)
            self._form = Form(opening, self._judge.offers, self._mark, repair=self._repair)
            self.state = self.state_form
        elif opening is None or self._held.is_open:
            return False
        else:
            end = end_of(MARK, self._text, self._pos)
            self._mark = self._text[self._pos : end]
            if opening == "fence":
                self._keep(end)
                self.state = self.state_language
            else:
                self._end_run()
                self._say(end)
                self._go_on_as_text("info")
        return True

    # -- how a form, a unit and a run of units end

    def _end_unit(self) -> None:
        """Close the open unit, all of whose forms are calls."""
        if self._statement is not None and self._statement.is_open:
            return
        self._held.close(ends=self._form.is_loop)
        self._mark, self._statement = "", None
        self.state = self.state_between

    def _reject(self) -> None:
        """Give out the open unit as text (rule 1)."""
        text = self._held.take_open()
        self._statement = None
        if not text:
            return
        self._end_run()
        self._out.append(text)
        self._said = True
        self._go_on_as_text("start" if _AT_LINE_START.search(text) else "line")

    def _go_on_as_text(self, place: Place) -> None:
        """Read on from ``place``: as code in a fence that holds no call, else as prose."""
        if self._mark:
            self._code = CodeFence(self._mark, place)
            self.state = self.state_code
        else:
            self.state = self.state_line if place == "start" else self.state_prose

    def _end_run(self, *, last: bool = False) -> None:
        """Decide over the units held back (rule 2): calls at the start and at the end of the answer, else text."""
        first = not self._said
        run = self._held.take_run(count=last and first if self._is_taught else last or first)
        self._out += run
        self._said, self._is_taught = self._said or bool(run), False

    def _say(self, end: int) -> None:
        """Give out text up to ``end``."""
        if end > self._pos:
            text = self._text[self._pos : end]
            self._out.append(text)
            self._said = self._said or not text.isspace()
            self._pos = end

    def _keep(self, end: int) -> None:
        """Add the text up to ``end`` to the open unit."""
        self._held.keep(self._text[self._pos : end])
        self._pos = end

    def _hold_space(self) -> bool:
        """Hold back whitespace; return whether there is nothing behind it to be read in this state."""
        end = min(end_of(_SPACE, self._text, self._pos), self._pos + max(self._limit + 1 - self._held.size, 0))
        self._held.keep_tail(self._text[self._pos : end])
        self._pos = end
        if self._held.size <= self._limit:
            return end == len(self._text)
        if self.state == self.state_behind_form and self._is_whole:
            self._end_unit()
            self._end_run()
            self.state = self.state_line
        else:
            self._reject()
        return True

    @property
    def _is_whole(self) -> bool:
        """Whether what follows a form cannot spoil its unit: outside a fence, once its line has ended."""
        return not self._mark and self._held.line_ended

    def _wait(self) -> None:
        """Read the rest again when more text follows."""
        self._rest, self._pos = self._text[self._pos :], len(self._text)
