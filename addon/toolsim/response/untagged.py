"""Finds untagged calls in text that the sentinel treats as prose, and submits them to the judge.

Regardless of the prompt, many models write only tags that they were trained on. They write a valid call, but without a
tag, or in a code fence. Therefore, the following *units* also count as calls. A *form* is the text of one call or list:

    unit  := fence | bare | marker{1,2} form+ marker* NEWLINE      markers of no known family: see unknown_markers
    fence := "```" ["json" | "tool_call" | "tool_code" | "xml" | "python" | "py"] NEWLINE form+ "```" NEWLINE
           | "```" list "```" NEWLINE
    bare  := form+ NEWLINE                     no other text on these lines; "," or ";" can separate forms
    form  := object | array | syntax | record | list | braces
    object, array                              JSON: {"name": …, "arguments": …}, {"tool_calls": […]}, [{…}, {…}];
                                               and see object_shapes
    syntax := name(…)                          see call_syntax; in a code fence, also print(…) or x = …
    list  := [name(…), …] | ["name(…)", …]
    braces := name{…}                          a model's own form whose markers the server dropped: see call_starts
    record := [function_call … name=… arguments=…]

 1. A unit counts only if all its forms are calls to offered tools, with arguments that match the schemas of these
    tools. Otherwise, the entire unit is text. It is never a violation, even if a tool is strict.
 2. A unit counts only at the start or end of the answer, because a unit between other text usually only describes a
    call. If several units are separated only by whitespace, either all of them count, or all are text. A fence in
    Python counts only if it is the complete answer, unless its calls are in lists, which do not occur in explanations
    of code.
 3. Units in a thought (``<think>``), a sentence, inline code, or a fence in another language do not count.
 4. Text is held back only while it may be part of a unit. A unit begins at the start of a line, with ``{``, ``[``, a
    fence, or the name of an offered tool and a parenthesis. The text is emitted as soon as it cannot be a unit, for
    example because of the language of a fence, a key that calls do not have, or an unexpected character.
 5. A unit at the end of the received text is held back until more text shows whether the unit is at the end of the
    answer.
 6. A unit of more than ``limit`` characters is text.
 7. No text is read twice. After a form has been rejected, its text is not searched for other calls.
 8. The two lines of a fence around tagged blocks belong to the blocks, and are emitted as ``FenceMark``.
 9. No text is lost: the emitted segments, each as its raw text, add up to the input. The result does not depend on how
    the input is split.
10. If a list repeats the same call endlessly, or until the answer is cut off, both the list and the answer end there
    (``repetition``).
11. A unit at the end of the answer does not count if the sentence before it introduces an example (``explanation``).
    The same applies to tagged blocks in a fence. In a fence that contains code, a tagged block within a line is text.
12. If the client has requested a JSON answer, ``answer_format`` decides whether a form is the answer or a call. If it
    is the answer, it is text.
13. If the text before a tagged block ends with the closing marker of a call, this text contains a call that could not
    be parsed. The block is then text, too, because the second of two calls must not run without the first. A marker
    after complete sentences does not close a call. If an untagged call after a block has a closing marker, it is
    treated as a block whose opening marker is missing. It then counts even before other text.
14. An end-of-turn token after a block ends the answer, because the model would continue with invented turns. A block
    that follows a surplus marker and repeats an earlier block verbatim also ends the answer, because the model has
    started over. The repeated block, and all output after the end, is text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolsim.response.call_starts import CODE, MARK, PYTHON, Statement, find_call_start, language_at
from toolsim.response.explanation import MAX_SENTENCE, introduces_example
from toolsim.response.form import Form
from toolsim.response.judge import Judge
from toolsim.response.prose import Cursor, Place, ProseReader
from toolsim.response.quotation import Quotation
from toolsim.response.segments import Block, Calls, FenceMark, Fragment, Oversize, ParserWrapper, Segment, TaggedSegment
from toolsim.response.sentinel import Sentinel
from toolsim.response.unknown_markers import ENDS_OF_TURN, ends_unreadable_call, marker_end
from toolsim.response.verdict import Accepted

_INDENT = re.compile(r"[ \t\r]*+")
_SPACE = re.compile(r"\s*+")
_MAX_MARKERS = 2
_AT_LINE_START = re.compile(r"\n[ \t\r]*+\Z")


class HeldUnits:
    """Text that is held back: a run of complete units, followed by the unit that is currently being read.

        run  := (unit | whitespace)*    all units count as calls, or all are text (rule 2)
        open := raw tail                ``tail``: whitespace at the end, part of the unit if a form follows

    All text is eventually returned, in order. ``size``: the length of the held-back text, in characters. ``calls``: the
    calls in the open unit so far.
    """

    def __init__(self) -> None:
        self._run: list[Calls | str] = []
        self._raw: list[str] = []
        self._tail: list[str] = []
        self.calls: list[Accepted] = []
        self.size = 0
        self.are_closed = False  # Whether all of the complete units have closing markers.

    def __len__(self) -> int:
        return len(self._run) + len(self._raw)

    @property
    def is_open(self) -> bool:
        """Whether a unit of calls is currently being read."""
        return bool(self._raw)

    @property
    def has_units(self) -> bool:
        """Whether any complete units are held back."""
        return any(isinstance(segment, Calls) for segment in self._run)

    @property
    def has_line_ended(self) -> bool:
        """Whether a newline follows the last call in the unit that is being read."""
        return any("\n" in segment for segment in self._tail)

    def add(self, text: str) -> None:
        """Add text to the unit that is being read."""
        if text:
            self.join_tail()
            self._raw.append(text)
            self.size += len(text)

    def add_tail(self, text: str) -> None:
        """Add whitespace that may belong to the unit that is being read."""
        if text:
            self._tail.append(text)
            self.size += len(text)

    def join_tail(self) -> None:
        """Treat the whitespace after the unit that is being read as part of the unit."""
        self._raw += self._tail
        self._tail = []

    def take_tail(self) -> str:
        """Remove and return the whitespace after the unit that is being read."""
        text = "".join(self._tail)
        self._tail = []
        self.size -= len(text)
        return text

    def take_open(self) -> str:
        """Remove and return the text of the unit that is being read, because it is not a call after all."""
        text = "".join([*self._raw, *self._tail])
        self._raw = []
        self._tail = []
        self.calls = []
        self.size -= len(text)
        return text

    def close(self, *, ends: bool = False, is_closed: bool = False) -> None:
        """Add the unit that is being read to the complete units, because it consists of calls.

        ``ends``: whether the answer ends after this unit. ``is_closed``: whether the unit has a closing marker.
        """
        self.are_closed = is_closed and (self.are_closed or not self._run)
        self._run.append(Calls("".join(self._raw), tuple(self.calls), ends))
        self._run += self._tail
        self._raw = []
        self._tail = []
        self.calls = []

    def add_space(self, text: str) -> None:
        """Add whitespace after the complete units."""
        if text:
            self._run.append(text)
            self.size += len(text)

    def take_run(self, *, count: bool) -> list[Calls | str]:
        """Remove and return the complete units: as calls if ``count`` is true, otherwise as one string."""
        run, self._run, self.are_closed = self._run, [], False
        text = "".join(segment.raw if isinstance(segment, Calls) else segment for segment in run)
        self.size -= len(text)
        return run if count or not run else [text]


class Untagged(ParserWrapper[Quotation | Sentinel, HeldUnits]):
    """Finds untagged calls in the sentinel's output. Call ``feed`` with each chunk of text, and ``finish`` once at the
    end. Neither raises exceptions.
    """

    def __init__(
        self, sentinel: Quotation | Sentinel, judge: Judge, *, limit: int = 200_000, repair: bool = True
    ) -> None:
        super().__init__(sentinel, HeldUnits())
        self._judge = judge
        self._limit = limit
        self._repair = repair
        self._names = judge.toolbox.spellings
        self._at = Cursor()
        self._prose = ProseReader()
        self._form = Form("json", judge.toolbox)
        self._mark = ""  # The backticks of the current code fence if the fence may contain calls, otherwise "".
        self._markers = 0  # Number of unknown markers at the start of the current unit.
        self._is_closed = True  # Whether the current unit needs no closing marker, or already has one.
        self._has_closing = False  # Whether the current unit has a closing marker.
        self._statement: Statement | None = None  # The Python code around the calls in the current fence, or None.
        self._has_python = False  # Whether any complete unit contains a Python statement (rule 2).
        self._out: list[Segment] = []
        self._before = ""  # The last characters of the emitted text.
        self._is_over = False  # Whether an end-of-turn token or a repeated block has ended the answer (rule 14).
        self._bodies: set[int] = set()  # Hashes of the bodies of all tagged blocks so far.
        self._has_surplus = (
            False  # Whether a surplus marker, such as a second closing tag, has followed the last block.
        )
        self._is_behind_block = False  # Whether the last visible output was a tagged block.
        self._in_example = False  # Whether the current code fence shows an example with tagged blocks (rule 11).
        self._is_in_fragments = False  # Whether the last segment was a ``Fragment`` of a tagged block.
        self._is_in_line = False  # Whether the rest of the line can be emitted without being read.
        self.state = self.state_prose

    def __repr__(self) -> str:
        return f"Untagged({self.state.__name__}, {self._prose}, {self._inner})"

    @property
    def open_size(self) -> int:
        """Number of characters received so far of the open tagged block, or 0 if the block is part of an untagged
        call.
        """
        is_content = self.state == self.state_form and self._form.is_in_string
        return 0 if is_content else super().open_size

    def feed(self, text: str) -> Sequence[Segment]:
        """Read the next chunk of text, and return the segments that are now complete."""
        segments = self._inner.feed(text)
        if not segments:
            return ()
        if self._is_in_line and len(segments) == 1 and isinstance(segment := segments[0], str) and "\n" not in segment:
            self._before = f"{self._before}{segment}"[-MAX_SENTENCE:]
            self._is_behind_block = self._is_behind_block and segment.isspace()
            return segments
        return self._take(segments)

    def finish(self, *, cut: bool = False) -> list[Segment]:
        """Return the remaining segments at the end of the text. Do not call ``feed`` afterwards.

        ``cut``: whether the text is known to be incomplete.
        """
        out = self._take(self._inner.finish(cut=cut))
        self._form.was_cut = cut
        self._end_of_prose()
        if self.state == self.state_form and self._form.lacks_end:
            self._finish_form()
        # At the end of the answer, a missing closing marker is ignored, unless the answer was cut off.
        self._is_closed = self._is_closed or (self._repair and not cut)
        if self.state in (self.state_behind_form, self.state_behind_fence) and self._is_closed:
            self._end_unit()
        # Backticks after the units, at the end of the answer, do not open a fence. They are dropped as a surplus
        # closing mark.
        if self.state == self.state_language and self._repair and not cut and self._held.has_units:
            mark = self._held.take_open()
            self._end_run(last=True)
            self._out.append(FenceMark(mark, opening=False))
        self._reject()
        self._end_run(last=True)
        return out + self._out

    def _take(self, segments: Sequence[TaggedSegment]) -> list[Segment]:
        for segment in segments:
            if isinstance(segment, str):
                self._is_in_fragments = False
                if self._is_over:
                    self._out.append(segment)
                else:
                    self._read(segment)
                    self._in_example = self._in_example and self._prose.is_in_fence
            else:
                self._take_block(segment)
        is_in_prose = self.state == self.state_prose and not self._at.is_waiting
        self._is_in_line = is_in_prose and self._prose.is_open and self._prose.is_in_line
        out, self._out = self._out, []
        self._note(out)
        return out

    def _take_block(self, segment: Block | Oversize | Fragment | FenceMark) -> None:
        if isinstance(segment, Fragment):
            if self._is_in_fragments:
                self._out.append(segment)
            if self._is_in_fragments or self._is_over:
                return
        raw = "" if isinstance(segment, Fragment) else segment.raw
        was_over, self._is_over = self._is_over, self._is_over or self._ends_turn(segment)
        self._is_in_fragments = False
        if was_over:
            self._out.append(raw)
        elif self._is_over and isinstance(segment, Block):
            self._block_begins()
            self._out.append(raw)
        elif self._is_content:
            self._read(raw)
        elif self._in_example or (self._mark and self.state == self.state_before_form and self._introduces_example):
            self._in_example = True
            self._read_example(raw)
        else:
            self._block_begins()
            if isinstance(segment, Block) and ends_unreadable_call(self._with(self._out), MAX_SENTENCE):
                self._emit(raw)
                return
            self._out.append(segment)
            is_closing = isinstance(segment, FenceMark) and not segment.opening
            self._is_behind_block = isinstance(segment, Block) or (self._is_behind_block and is_closing)
            self._is_in_fragments = isinstance(segment, Fragment)

    @property
    def _is_content(self) -> bool:
        """Whether a tagged block is only content: in a string of an untagged call, or in the middle of a line of
        code.
        """
        if self.state != self.state_prose or not self._prose.is_in_fence:
            return self.state == self.state_form and self._form.is_in_string
        before = self._with(self._out)
        return before != "" and _AT_LINE_START.search(before) is None

    def _read(self, text: str) -> None:
        self._at.feed(text)
        while not self._at.is_exhausted:
            self.state()

    def _ends_turn(self, segment: TaggedSegment) -> bool:
        """Return whether the answer ends at this segment (rule 14)."""
        if isinstance(segment, FenceMark):
            self._has_surplus = True
            return not segment.opening and segment.raw in ENDS_OF_TURN
        if not isinstance(segment, Block):
            return False
        body = hash(segment.body)
        is_loop = self._has_surplus and body in self._bodies
        self._bodies.add(body)
        self._has_surplus = False
        return is_loop

    def _read_example(self, raw: str) -> None:
        """Emit a tagged block as text, because it is in a fence that shows an example (rule 11)."""
        if self.state == self.state_before_form:
            self._reject()
        self._read(raw)

    def _end_of_prose(self) -> None:
        """Process the text that was held back until more text arrives, because a block or the end of the answer
        follows.
        """
        self._at.is_final = True
        self._read("")
        self._at.is_final = False

    def _block_begins(self) -> None:
        """Process all held-back text, because a tagged block begins."""
        self._end_of_prose()
        if self._mark and self.state == self.state_before_form:
            mark, self._statement = self._held.take_open(), None
            self._end_run()
            self._out.append(FenceMark(mark, opening=True))
            self.state = self.state_behind_block
        elif self.state == self.state_behind_block:
            self._out += filter(None, [self._held.take_tail()])
        else:
            # A tagged block can follow a unit on the same line only if the unit has a closing marker.
            is_whole = self._is_whole or (
                not self._mark and (self._has_closing or self._form.kind in ("braces", "gemma"))
            )
            if self.state == self.state_behind_fence or (self.state == self.state_behind_form and is_whole):
                self._end_unit()
            self._reject()
            self._end_run()
            self._resume_text("line")
        self._prose.has_started = True

    # -- the states

    def state_prose(self) -> None:
        """Read text up to a position where an untagged call may begin (rules 3 and 4)."""
        text, may_begin = self._prose.read(self._at)
        if text:
            self._out.append(text)
            self._is_behind_block = self._is_behind_block and text.isspace()
        if may_begin and not self._begin():
            self._prose.resume("line")

    def state_language(self) -> None:
        """Read the language of a code fence, which determines whether the fence can contain calls."""
        has_started = self._prose.has_started
        language = language_at(self._at.text, self._at.pos, has_started=has_started, final=self._at.is_final)
        if language == "more":
            self._at.wait()
        elif language is None:
            self._reject()
            self._resume_text("info")
        else:
            self._statement = Statement(is_python=language[0] in PYTHON) if language[0] in CODE else None
            self._extend_unit(language[1])
            self.state = self.state_before_form

    def state_before_form(self) -> None:
        """Read up to the first call in a code fence, or after an unknown marker."""
        self._extend_unit(self._at.end_of(_SPACE))
        if self._held.size > self._limit or not (self._at.is_exhausted or self._begin()):
            self._reject()

    def state_form(self) -> None:
        """Read the text of an untagged call."""
        at = self._at
        stop = min(len(at.text), at.pos + self._limit - self._held.size)
        end, is_form = self._form.read(at.text, at.pos, stop)
        self._extend_unit(end)
        if is_form:
            self._finish_form()
        elif is_form is False or stop < len(at.text) or (end < stop and at.is_final):
            self._reject()
        elif end < stop:
            at.wait()

    def _finish_form(self) -> None:
        """Ask the judge whether the text that has been read consists of valid calls."""
        if self._statement is not None and self._statement.is_python and self._form.kind == "syntax":
            self._has_python = True
        calls = None
        if not self._is_answer(self._form.json):
            calls = self._judge.untagged(*self._form.calls())
        self._held.calls += calls or []
        self.state = self.state_behind_form
        if calls is None:
            self._reject()

    def _is_answer(self, text: str) -> bool:
        wanted = self._judge.answer_format
        return bool(text) and wanted is not None and wanted.is_answer(text)

    def state_behind_form(self) -> None:
        """Read the text after an untagged call. The text may be another call, or determine whether the calls are alone
        on their lines.
        """
        if self._form.is_loop:
            self._end_unit()
            self._end_run(last=True)
            self._resume_text("line")
            return
        if self._hold_space():
            return
        if self._statement is not None and self._statement.is_open:
            end = self._statement.behind(self._at.text, self._at.pos)
            if end > self._at.pos:
                self._extend_unit(end)
            else:
                self._reject()
        elif self._at.char in ",;":
            self._extend_unit(self._at.pos + 1)
        elif self._mark and self._at.char == "`":
            if (end := self._closing_mark()) > self._at.pos:
                self._extend_unit(end)
                self._mark = ""
                self.state = self.state_behind_fence
            elif not end:
                self._reject()
        elif (marker := self._closing_marker()) is not None:
            if marker:
                self._extend_unit(marker)
                self._is_closed = self._has_closing = True
        elif not self._begin():
            self._end_or_reject(is_whole=self._is_whole)

    def _closing_marker(self) -> int | None:
        """Return the end of the closing marker at this position, or None if there is no closing marker.

        If more text is needed, wait for it and return 0.
        """
        at = self._at
        if self._mark or at.char not in "<[" or not (self._markers or self._repair):
            return None
        end = marker_end(at.text, at.pos, closing=True, final=at.is_final)
        if end is None:
            at.wait()
        return 0 if end is None else end or None

    def _begin_marker(self) -> bool:
        """Begin a unit if there is an unknown opening marker at this position. Return False if there is none.

        If more text is needed, wait for it and return True.
        """
        at = self._at
        if self._mark or at.char not in "<[" or self._markers == _MAX_MARKERS or self.state == self.state_behind_form:
            return False
        end = marker_end(at.text, at.pos, final=at.is_final)
        if end == 0:
            return False
        if end is None:
            at.wait()
        else:
            self._extend_unit(end)
            self._markers += 1
            self._is_closed = False
            self.state = self.state_before_form
        return True

    def state_behind_fence(self) -> None:
        """Read the rest of the line after a code fence. If other text follows on this line, the calls in the fence are
        text.
        """
        self._held.add_tail(self._at.skip(_INDENT))
        if self._at.is_exhausted:
            return
        if (marker := self._closing_marker()) is None:
            self._end_or_reject(is_whole=self._at.char == "\n")
        elif marker:
            self._extend_unit(marker)

    def state_between(self) -> None:
        """Read the text after a unit of calls, up to the next unit or the end of the answer (rule 5)."""
        self._held.add_space(self._at.skip(_SPACE))
        if self._held.size > self._limit or not (self._at.is_exhausted or self._begin()):
            self._end_run()
            self._resume_text("start")

    def state_behind_block(self) -> None:
        """Read the text after a tagged block in a code fence (rule 8)."""
        if self._hold_space():
            return
        if (end := self._closing_mark()) > self._at.pos:
            self._out.append(FenceMark(self._held.take_tail() + self._at.take(end), opening=False))
            self._mark = ""
            self._resume_text("line")
        elif not end:
            self._out += filter(None, [self._held.take_tail()])
            self._resume_text("line")

    def _closing_mark(self) -> int:
        """Return the end of the backticks that close the fence at this position, or 0 if there are none.

        If more text is needed, wait for it and return -1.
        """
        end = self._at.end_of(MARK)
        if self._at.pos < end == len(self._at.text) and not self._at.is_final:
            self._at.wait()
            return -1
        return end if end > self._at.pos and self._at.text.startswith(self._mark, self._at.pos) else 0

    def _begin(self) -> bool:
        """Begin to read an untagged call, a code fence or an unknown marker at this position. Return False if there is
        none.

        If more text is needed, wait for it and return True.
        """
        if self._begin_marker():
            return True
        text, pos, final = self._at.text, self._at.pos, self._at.is_final
        start = pos if self._statement is None else self._statement.before(text, pos, final=final)
        opening = "more" if start is None else find_call_start(text, start, self._names, final=final)
        if opening == "more":
            self._at.wait()
        elif opening == "syntax" or (opening and opening != "fence" and opening != "code" and start == pos):
            self._held.join_tail()
            self._extend_unit(start or pos)
            self._form = Form(opening, self._judge.toolbox, self._mark, repair=self._repair)
            self.state = self.state_form
        elif opening is None or self._held.is_open:
            return False
        else:
            end = self._at.end_of(MARK)
            self._mark = text[pos:end]
            if opening == "fence":
                self._extend_unit(end)
                self.state = self.state_language
            else:
                self._end_run()
                self._emit(self._at.take(end))
                self._resume_text("info")
        return True

    # -- the ends of a form, a unit and a run of units

    def _end_unit(self) -> None:
        """Complete the current unit, which consists only of calls."""
        if self._statement is not None and self._statement.is_open:
            return
        self._held.close(ends=self._form.is_loop, is_closed=self._has_closing)
        self._markers, self._is_closed, self._has_closing = 0, True, False
        self._mark = ""
        self._statement = None
        self.state = self.state_between

    def _end_or_reject(self, *, is_whole: bool) -> None:
        if is_whole:
            self._end_unit()
        else:
            self._reject()

    def _reject(self) -> None:
        """Emit the current unit as text (rule 1)."""
        text = self._held.take_open()
        self._markers, self._is_closed, self._has_closing = 0, True, False
        self._statement = None
        if not text:
            return
        self._end_run()
        self._emit(text)
        self._resume_text("start" if _AT_LINE_START.search(text) else "line")

    def _resume_text(self, place: Place) -> None:
        """Continue to read prose at ``place``. If a code fence is open, it is treated as a fence without calls."""
        self._prose.resume(place, self._mark)
        self._mark = ""
        self.state = self.state_prose

    def _end_run(self, *, last: bool = False) -> None:
        """Emit the complete units: as calls if they are at the start or end of the answer, otherwise as text (rule
        2).
        """
        # If a unit with a closing marker follows a tagged block, it is treated as a block without an opening marker.
        first = not self._prose.has_started or (self._is_behind_block and self._repair and self._held.are_closed)
        # At the start of the answer, only reasoning can precede the units, and reasoning does not introduce an example.
        counts = last and first if self._has_python else first or (last and not self._is_example)
        run = self._held.take_run(count=counts)
        self._out += run
        self._prose.has_started = self._prose.has_started or bool(run)
        self._has_python = False

    @property
    def _is_example(self) -> bool:
        """Whether the text before the complete units introduces an example (rule 11)."""
        return bool(self._held) and self._introduces_example

    @property
    def _introduces_example(self) -> bool:
        return introduces_example(self._with(self._out))

    def _note(self, segments: Sequence[Segment]) -> None:
        self._before = self._with(segments)

    def _with(self, segments: Sequence[Segment]) -> str:
        """Return the last characters of the text up to this point, or "" directly after a call.

        ``segments``: the last segments, which are not in ``_before`` yet.
        """
        ends: list[str] = []
        size = 0
        # The segments are read from the end, because thousands of them may precede each block.
        for segment in reversed(segments):
            if size >= MAX_SENTENCE:
                break
            if isinstance(segment, str):
                ends.append(segment[-MAX_SENTENCE:])
                size += len(segment)
            elif not isinstance(segment, Fragment) and not (isinstance(segment, FenceMark) and segment.opening):
                break  # A ``Fragment`` is only a preview, and an opening ``FenceMark`` belongs to the next block.
        else:
            ends.append(self._before)
        return "".join(reversed(ends))[-MAX_SENTENCE:]

    def _emit(self, text: str) -> None:
        """Emit text that is visible to the client."""
        self._is_behind_block = False
        self._out.append(text)
        self._prose.has_started = True

    def _extend_unit(self, end: int) -> None:
        """Add the text up to ``end`` to the current unit."""
        self._held.add(self._at.take(end))

    def _hold_space(self) -> bool:
        """Hold back whitespace at the current position. Return whether nothing more can be read in the current state,
        because the text has ended or is too long.
        """
        at = self._at
        self._held.add_tail(at.take(min(at.end_of(_SPACE), at.pos + max(self._limit + 1 - self._held.size, 0))))
        if self._held.size <= self._limit:
            return at.is_exhausted
        if self.state == self.state_behind_form and self._is_whole:
            self._end_unit()
            self._end_run()
            self._resume_text("start")
        else:
            self._reject()
        return True

    @property
    def _is_whole(self) -> bool:
        """Whether the current unit is complete, regardless of the text that follows. This is the case if it is not in a
        code fence, its last line has ended, and it does not lack a closing marker.
        """
        return not self._mark and self._held.has_line_ended and self._is_closed
