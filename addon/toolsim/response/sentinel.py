"""Finds tagged blocks, which may be tool calls, in text that arrives in chunks.

    prose <tool_call>{"name":"f","arguments":"{}"}</tool_call> prose <use_tool><name>f</name></use_tool>

A block consists of an opening tag, a body and, usually, a closing tag. The sentinel recognizes tags, the beginnings and
ends of strings and values, and the nesting of brackets. It does not parse JSON or look up names. The judge decides
whether a block is a valid call.

The tests refer to these rules by number. A block is *open* from its opening tag to its end:

 1. A block begins with an exact opening tag: one of toolsim's own tags, or a marker of the ``call_forms``. (Rule 15
    describes misspelled tags.) Text is held back only while it may be part of a block.
 2. A body must follow the opening tag; otherwise, the tag is prose and is released immediately. A JSON body begins with
    ``{`` and then a quote, a ``}`` or a bare key with its colon, or with ``[`` and then ``{`` or ``]``. Each of the
    ``call_forms`` defines the beginning of its body. Whitespace can precede any body, and the opening line of a fence
    can precede a JSON body.
 3. In a JSON body, a tag inside a string is content. A tag outside strings can close the block:
    - the block's closing tag does, at any depth of brackets (the judge adds a missing last brace);
    - a new opening tag does if the JSON is complete;
    - a closing tag of another form, such as ``</function>``, does if the JSON is complete. This tag then belongs to the
      block, as does the correct closing tag directly after it.
    In a form without a closing tag, the last closing bracket closes the block, unless a comma or a semicolon and
    another object follow.
 4. The end of the text closes a block whose JSON is complete. If the text ends with the beginning of the closing tag,
    this beginning belongs to the block. The end of the text closes any other body only if the body can be read without
    repair, and either ends with a marker of its form, or the text is not known to be cut off.
 5. In a *literal* body, only tags count, not strings and brackets. The first closing tag closes the block. An opening
    tag before it ends the block without closing it (rule 7). If a JSON body contains an error that is worse than the
    slips of rule 6, it is read again from its beginning, as a literal body. Bodies that are not JSON are always
    literal, but tags inside their values are content. A value has no end if the text ends within it, or if it contains
    an unmatched closing tag and then an opening tag. In this case, the block and all text after it are read again as if
    there were no values.
 6. Small slips in JSON are trailing commas, control characters and invalid escapes in strings, bare words as values,
    and extra closing brackets.
 7. If a block is not closed, its opening tag is prose, and reading resumes directly after this tag.
 8. Reasoning that models write into their text does not reach the sentinel, because ``calls_in_reasoning`` handles it
    first. The markers of reasoning are therefore prose here.
 9. If a block is longer than ``limit`` bytes of UTF-8, not counting its tags, it is emitted as ``Oversize`` up to the
    limit. The text after the limit is prose again.
10. No text is lost: the emitted segments, without the ``Fragment`` previews and with each block as its raw text, add up
    to the input.
11. The segments do not depend on how the input is split into chunks, except that prose can be split differently.
12. Some attempts at a call are so malformed that the judge never sees them. They are counted as lost calls. A call is
    lost if toolsim's own opening tag is followed by its closing tag, with no body and no other tag between them. A call
    is also lost if a body begins and the text ends within it, unless the answer was cut off.
13. With ``keeps_unread``, which is set if any tool is strict, text between toolsim's own tags is a block even if it
    does not begin like a call. The text is held back until its closing tag, which must follow within ``_MAX_LOST``
    characters and before any other tag. ``quotation`` then checks whether the block stands alone. If so, it is a failed
    call.
14. With ``drops_surplus``, surplus markers are emitted as ``FenceMark``, so that they are dropped if the block is a
    call. Surplus markers are opening tags before the block's own tag, and closing tags and end-of-turn tokens after the
    block, with only whitespace in between.
15. With ``drops_surplus``, a misspelled opening tag (``misspelled``) at the start of a line or directly after a block
    opens a block, which counts as a call only if it stands alone (``Block.is_bare``). A misspelled closing tag closes a
    complete body. A JSON body is then closed immediately, any other body only when the next block begins or the text
    ends. If the closing tag is missing altogether, the opening tag of the next block closes a complete body.

The sentinel runs in linear time. Text is read again only under rules 5, 7 and 13, and each character at most a fixed
number of times. When a body is read again, a tag that was inside a string the first time can end the block, because
quotes can pair up differently. ``limit`` also limits the memory use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

from toolsim.core.custom_forms import CustomForm
from toolsim.response.call_forms import JSON, CallForm, needs_end, reads_cleanly, row_at
from toolsim.response.misspelled import spellings_of
from toolsim.response.parsed_call import MISSING_CLOSE, MISSPELLED_MARKER
from toolsim.response.partial import match_at
from toolsim.response.segments import (
    IN_STRING,
    Block,
    FenceMark,
    Fragment,
    Oversize,
    TaggedSegment,
    characters_within,
    utf8_length,
)
from toolsim.response.tags import (
    MAX_OPENING,
    OpenValue,
    behind_fence,
    ends,
    foreign_end,
    held_from,
    open_tag,
    tags,
    without_space,
)

_SPACE = re.compile(r"[ \t\r\n]*+").match
_BLANK = re.compile(r"\s*+").match
_BETWEEN = re.compile(
    r"\s{0,16}(?:[;,]\s{0,16}|(?P<tail>\[/TOOL_CALLS\]|</function_call>)|(?P<half>[\[<](?:/[A-Za-z_]{0,13})?\Z))?"
).match
_LINE_MARK = re.compile(r"(?<=\n)[<\[\]]")
_END_FUNCTION = "</function>"
# Maximum amount of whitespace between an opening tag and its body. No model writes more, so a tag that is followed by
# more whitespace is prose (rule 2).
_MAX_SPACE = 1024
_MAX_TAIL = 64
"""Number of characters that are compared with surplus markers. All of these markers are shorter."""

_MAX_LOST = 4096
"""Maximum number of characters between the opening tag and the closing tag of a lost call (rule 12)."""


@lru_cache(maxsize=64)
def _beginnings(tag: str) -> frozenset[str]:
    return frozenset(tag[:end] for end in range(1, len(tag)))


class Sentinel:
    """Splits text into prose and tagged blocks. Call ``feed`` with each chunk of text, and ``finish`` once at the end.
    Both return segments and never raise exceptions.

    ``tag``: the name of toolsim's own tag. ``use_tool``: whether ``<use_tool>`` is recognized, too. ``foreign``:
    whether the markers of model families are recognized. ``limit``: the maximum size of a body, in bytes.
    ``fragments``: whether the beginnings of blocks are emitted as ``Fragment``s. ``drops_surplus``: see rules 14 and
    15. ``keeps_unread``: see rule 13. ``count_lost``: called for each lost call (rule 12).
    """

    # Slots are faster here: CPython accesses attributes more slowly if a ``__dict__`` has more than 30 of them.
    __slots__ = (
        "_closing",
        "_codes",
        "_content",
        "_drops_surplus",
        "_ends",
        "_final",
        "_fragments",
        "_held",
        "_hint",
        "_ignores_values",
        "_is_behind",
        "_is_foreign",
        "_is_idle",
        "_is_plain",
        "_json",
        "_keeps_unread",
        "_last",
        "_limit",
        "_lost",
        "_meant",
        "_opening",
        "_out",
        "_pieces",
        "_pos",
        "_reads_families",
        "_row",
        "_size",
        "_start",
        "_tags",
        "_text",
        "_value",
        "_was_cut",
        "state",
    )

    def __init__(
        self,
        tag: str = "tool_call",
        *,
        use_tool: bool = True,
        foreign: bool = False,
        limit: int = 200_000,
        fragments: bool = False,
        drops_surplus: bool = False,
        keeps_unread: bool = False,
        count_lost: Callable[[], None] = lambda: None,
        forms: tuple[CustomForm, ...] = (),
    ) -> None:
        self._keeps_unread = keeps_unread
        self._tags = tags(tag, use_tool, foreign, forms if foreign else ())
        self._hint = self._tags.hint.search
        self._reads_families = foreign
        self._drops_surplus = drops_surplus
        # The latest prose, or "" directly after a block. It shows whether the next character begins a line (rule 15).
        self._last = ""
        self._is_behind = False  # Whether only whitespace and surplus markers have followed the last block (rule 14).
        self._limit = limit
        self._fragments = fragments
        self._out: list[TaggedSegment] = []
        self._text = ""
        self._pos = 0  # Position of the next character to read.
        self._held = ""  # Text that is held back. The next chunk is appended to it.
        self._final = False  # Whether no more text will arrive.
        self._was_cut = False  # Whether the text was cut off.
        self._is_idle = False  # Whether no block is open, and at most one character is held back.
        self._is_plain = False  # Whether a chunk without "<", "[" and "]" is certainly prose.
        self._ignores_values = False  # Whether the body is read without recognizing values (rule 5).
        self._lost = LostCalls(count_lost)
        # Returns whether a chunk is only content of the body (see ``_enter``).
        self._content: Callable[[str], bool] | None = None
        self.state = self.state_prose
        # The state of the open block.
        self._opening = ""  # The opening tag of the open block, or "" outside blocks.
        self._closing = ""
        self._meant = ""  # The opening tag in its correct spelling (rule 15).
        self._codes: tuple[str, ...] = ()  # The codes of repairs to the tags.
        self._is_foreign = False  # Whether the tags belong to a model family rather than to toolsim.
        self._pieces: list[str] = []  # The block's text from earlier chunks, including the opening tag.
        self._start = 0  # Start of the open block in the current text. Earlier parts of the block are in ``_pieces``.
        self._size = 0  # Size of the part of the body in ``_pieces``, in bytes.
        self._json: JsonBody  # The lexer for a JSON body.
        self._row: CallForm | None = None  # The body's call form; None if no body is open, or if its JSON is malformed.
        self._value = OpenValue()  # Tracks whether a value is open in the body.
        self._ends: frozenset[str] = frozenset()  # Incomplete beginnings of the tags that are recognized in the body.

    def __repr__(self) -> str:
        return f"Sentinel({self.state.__name__})"

    @property
    def in_block(self) -> bool:
        """Whether a block is open, in which case text is held back."""
        return bool(self._opening)

    @property
    def open_size(self) -> int:
        """Number of characters received so far of the open block, or 0 outside blocks."""
        return sum(map(len, self._pieces)) + len(self._held) if self._opening else 0

    def feed(self, text: str) -> Sequence[TaggedSegment]:
        """Read the next chunk of text, and return the segments that are now complete."""
        if self._is_plain and (("<" not in text and "]" not in text and "[" not in text) or self._hint(text) is None):
            if not text:
                return ()
            self._last = text
            return (text,)
        if self._is_idle:
            if self._held:
                text = self._held + text
                self._held = ""
            if (found := self._hint(text)) is None:
                self._is_plain = self._tags.is_usual
                self._last = text or self._last
                return (text,) if text else ()
            end = found.start()
            if end == len(text) - 1:
                # The last character may begin a tag, so it is held back. The sentinel remains idle, because most such
                # characters turn out to be prose.
                text, self._held, self._is_plain = text[:end], text[end:], False
                self._last = text or self._last
                return (text,) if text else ()
        elif self._content is not None and not self._held and text and self._content(text):
            size = self._size + utf8_length(text)
            if size <= self._limit:
                self._size = size
                self._pieces.append(text)
                return [Fragment(text)] if self._has_fragments and self.state == self.state_json else []
        self._text = self._held + text
        self._held = ""
        self._pos = 0
        return self._read()

    def _enter(self, state: Callable[[], None], content: Callable[[str], bool] | None = None) -> None:
        """Change the state.

        ``content``: returns whether a chunk contains only content of the body, in which case the chunk is stored
        without being parsed.
        """
        self.state = state
        self._content = content

    def _has_no_marker(self, text: str) -> bool:
        return self._tags.first.search(text) is None

    @property
    def _has_fragments(self) -> bool:
        return self._fragments and not self._is_foreign and not self._is_misspelled

    def release(self) -> list[TaggedSegment]:
        """Return an empty list. Unlike other parsers, the sentinel holds back only text that may be part of a block."""
        return []

    def finish(self, *, cut: bool = False) -> list[TaggedSegment]:
        """Return the remaining segments at the end of the text. Do not call ``feed`` afterwards.

        ``cut``: whether the text is known to be incomplete.
        """
        self._final = True
        self._was_cut = cut
        self._text = self._held
        self._held = ""
        out = self._read()
        while self._opening:
            self._end_of_text()
            out += self._read()
        return out

    def _read(self) -> list[TaggedSegment]:
        while self._pos < len(self._text):
            self.state()
        self._text = ""
        self._pos = 0
        is_waiting = self._opening or len(self._held) > 1 or self._lost.is_searching or self._is_behind
        self._is_idle = not is_waiting and self.state == self.state_prose
        self._is_plain = self._is_idle and not self._held and self._tags.is_usual
        self._out, out = [], self._out
        return out

    # -- outside blocks

    def state_prose(self) -> None:
        """Look for an opening tag outside blocks (rule 1)."""
        if self._is_behind and not self._read_tail():
            return
        match = self._tags.opening.search(self._text, self._pos)
        at = match.start() if match else len(self._text)
        if self._drops_surplus and (found := self._misspelled(at)) is not None:
            self._emit(found[0])
            if found[1]:
                self._open(found[1], self._tags.misspelled[found[1]])
            else:
                self._hold(found[0])
        elif match is None:
            end = at if self._final else held_from(self._text, self._pos, self._tags.beginnings, self._tags.first)
            self._emit(end)
            self._hold(end)
        else:
            self._emit(at)
            self._open(match[0], without_space(match[0]))

    def _misspelled(self, stop: int) -> tuple[int, str] | None:
        """Find the first misspelled opening tag before ``stop`` (rule 15). Return its position and its spelling.

        The spelling is "" if more text is needed. Returns None if there is no misspelled opening tag.
        """
        text, spellings = self._text, self._tags.misspelled
        marks = [found.start() for found in _LINE_MARK.finditer(text, self._pos + 1, stop)]
        if self._pos < stop and text[self._pos] in "<[]" and (not self._last or self._last.endswith("\n")):
            marks.insert(0, self._pos)
        for at in marks:
            if not self._final and (
                without_space(text[at : at + MAX_OPENING]) in self._tags.beginnings
                or (len(text) - at < spellings.longest and spellings.may_begin(text[at:]))
            ):
                return at, ""
            if spelling := spellings.at(text, at):
                return at, spelling
        return None

    def _open(self, opening: str, meant: str) -> None:
        """Open a block at the current position. ``meant``: the correct spelling of the opening tag."""
        self._lost.close()
        self._start = self._pos
        self._pos += len(opening)
        self._opening = opening
        self._meant = meant
        self._codes = () if without_space(opening) == meant else (MISSPELLED_MARKER,)
        self._closing = self._tags.closing[meant]
        self._is_foreign = meant not in self._tags.ours
        self._row = None
        self._size = -len(opening)
        self.state = self.state_opened
        if self._pos == len(self._text):
            self._stash(self._pos)

    def _read_tail(self) -> bool:
        """Process the text after a block up to and including the next surplus marker (rule 14). Return whether there is
        more text to read.
        """
        self._emit(_BLANK(self._text, self._pos).end())  # type: ignore[union-attr]
        rest = self._text[self._pos : self._pos + _MAX_TAIL]
        found = next((tail for tail in self._tags.tails if rest.startswith(tail)), "")
        if not self._final and any(len(tail) > len(rest) and tail.startswith(rest) for tail in self._tags.tails):
            self._hold(self._pos)
        elif found:
            self._out.append(FenceMark(found, opening=False))
            self._pos += len(found)
        else:
            self._is_behind = self._pos == len(self._text)
        return not self._is_behind

    def _emit(self, end: int) -> None:
        if end > self._pos:
            prose, self._pos = self._text[self._pos : end], end
            self._last = prose
            self._out.append(prose)
            self._lost.feed(prose)

    def _hold(self, at: int) -> None:
        self._held = self._text[at:]
        self._pos = len(self._text)

    # -- inside a block

    def state_opened(self) -> None:
        """Read the text after an opening tag until it is clear whether a body follows (rule 2)."""
        text = self._text
        at = _SPACE(text, self._pos).end()  # type: ignore[union-attr]
        if text.startswith("`", at) and not self._is_foreign:
            if (behind := behind_fence(text, at, final=self._final)) is None:
                self._stash(at)
                return
            at = behind
        if self._size + at - self._start > min(_MAX_SPACE, self._limit):
            self._reject()
        elif at == len(text):
            self._stash(at)
        else:
            space = self._raw(at)[len(self._opening) :]
            behind_tag = not space or ("\n" in space and space.isspace())
            row = row_at(
                text,
                at,
                self._meant,
                behind_tag=behind_tag,
                final=self._final,
                narrow=not self._reads_families,
                misspelled=self._drops_surplus,
                rows=self._tags.rows.get(self._meant),
            )
            if self._is_misspelled and not space and isinstance(row, CallForm) and needs_end(row, self._opening):
                self._reject()
            elif row is None:
                self._stash(at)
            elif isinstance(row, CallForm):
                self._open_body(row, at)
            elif (other := self._tags.opening.match(text, at)) and self._goes_with(without_space(other[0])):
                self._pass_surplus(at)
            elif not self._final and self._may_be_tag(at):
                self._stash(at)
            elif self._drops_surplus and self._is_pair(self._tags.misspelled.at(text, at)):
                self._pass_surplus(at)
            elif self._keeps_unread and self._closing == self._tags.ours_end and not self._is_misspelled:
                self._pos = at
                self._enter(self.state_unread)
            else:
                self._reject()

    def _open_body(self, row: CallForm, at: int) -> None:
        self._row = row
        self._value = OpenValue(None if self._ignores_values else row)
        self._pos = at
        self._enter(self.state_literal, self._has_no_marker)
        self._ends = self._tags.beginnings | _beginnings(self._closing)
        head = match_at(row.begins, self._text, at, final=True)
        if head is None and row.misspelled:
            head = match_at(row.misspelled(), self._text, at, final=True)
        if row.skips_beginning and head:
            self._pos = head.end()
        if row.is_json:
            self._pos = (head.end() if head else at) + 1
            self._json = JsonBody(self._text[self._pos - 1], self._closing)
            self._enter(self.state_json, self._json.is_content)
        if self._pos == len(self._text):
            self._stash(self._pos)

    def state_json(self) -> None:
        """Process a JSON body, tracking only strings and brackets (rules 3 and 6)."""
        text = self._text
        # The text may extend far beyond ``limit``. It is read only up to the limit, because the text after it would be
        # read again as prose.
        stop = min(len(text), self._start + self._limit - self._size + 1)
        pos, met = self._json.read(text, self._pos, stop)
        if met == "tag" and self._closing:
            met, end = self._json.read_tag(text, pos, self._meant, self._closing, final=self._final)
            if met == "slip" and self._drops_surplus and self._json.is_complete:
                met, end = self._read_misspelled(pos)
        if met == "more":
            self._stash(pos)
        elif met == "opened":
            self._reject_at(pos)
        elif met != "closed":
            self._turn_literal(pos)
        elif self._closing:
            self._close(pos, end)
        else:
            self._pos = pos
            self._enter(self.state_behind_json)
            if pos == len(text):
                self._stash(pos)

    def _read_misspelled(self, pos: int) -> tuple[Stop, int]:
        """Look for a misspelled or missing closing tag after complete JSON (rule 15).

        Return "closed" and the end of the block, "more" and ``pos`` if more text is needed, or "slip" and ``pos`` if
        the JSON does not end here.
        """
        text, spellings = self._text, spellings_of(self._closing)
        if self._tags.opening.match(text, pos):
            self._codes = (*self._codes, MISSING_CLOSE)
            return "closed", pos
        if not self._final and (
            text[pos : pos + _MAX_TAIL] in self._tags.beginnings
            or (len(text) - pos < spellings.longest and spellings.may_begin(text[pos:]))
        ):
            return "more", pos
        if not (spelling := spellings.at(text, pos)):
            return "slip", pos
        self._codes = tuple(dict.fromkeys((*self._codes, MISSPELLED_MARKER)))
        return "closed", pos + len(spelling)

    def state_behind_json(self) -> None:
        """Process the text after JSON that has no closing tag. Another call can follow (rules 3 and 4)."""
        text = self._text
        between = _BETWEEN(text, self._pos)
        assert between is not None
        if between["tail"]:
            self._close(self._pos, between.end())
        elif between.end() == len(text) and not self._final:
            self._stash(self._pos)
        elif self._row and between[0].strip() and text.startswith("{", between.end()):
            self._open_body(self._row, between.end())
        elif self._row and not between[0] and self._row.again and (more := self._more(self._row.again)) is not False:
            if more:
                self._open_body(self._row, self._pos)
            else:
                self._stash(self._pos)
        else:
            self._close(self._pos, self._pos)

    def _more(self, again: str) -> bool | None:
        """Return whether another call directly follows the JSON body, or None if more text is needed."""
        found = match_at(again, self._text, self._pos, final=self._final)
        return False if found is None or not found.end() > self._pos else None if found.partial else True

    def state_unread(self) -> None:
        """Process text that does not begin like a call. It is a block if the next tag closes it (rule 13)."""
        text = self._text
        most = min(_MAX_LOST, self._limit)
        stop = min(len(text), self._start + most - self._size + 1)
        end = text.find(self._closing, self._pos, stop)
        other = self._tags.opening.search(text, self._pos, stop if end == -1 else end)
        if other is not None:
            self._reject_at(other.start())
        elif end != -1:
            self._close(end, end + len(self._closing))
        elif self._final or stop < len(text):
            self._reject()
        else:
            # ``open_tag`` also finds the beginning of the closing tag, because both kinds of tags begin with "<".
            self._stash(max(self._pos, open_tag(text, self._pos)))

    def state_literal(self) -> None:
        """Process a literal body, in which only tags outside values are recognized (rule 5)."""
        text, closing, value = self._text, self._closing, self._value
        # A tag that begins at the limit must still be recognized.
        stop = min(len(text), self._start + self._limit - self._size + 1 + len(closing))
        match = ends(self._meant, closing, value.marks).search(text, self._pos, stop)
        if match is None:
            self._stash(stop if self._final or stop < len(text) else self._held_in_literal(value))
        elif match.lastgroup == "value" or value.is_open:
            self._pos = match.end()
            if not value.passes(match, self._meant):
                self._read_plainly(self._pos)
            elif self._pos == len(text):
                self._stash(self._pos)
        elif match[0] != closing:
            self._reject_at(match.start())
        else:
            end = match.end()
            # toolsim's own closing tag may follow, and then also belongs to the block.
            if self._is_foreign and closing == _END_FUNCTION:
                end = foreign_end(text, match.start(), self._tags.ours_end, final=self._final)
            if end < 0:
                self._stash(match.start())
            else:
                self._close(match.start(), end)

    def _held_in_literal(self, value: OpenValue) -> int:
        """Return the start of a tag or delimiter that may be incomplete at the end of the text, or the length of the
        text if there is none.

        The tags in ``_ends`` are compared separately, because ``OpenValue.held_from`` treats text that contains ``>``
        as complete.
        """
        text = self._text
        if self._tags.first.search(text) is None:
            return len(text)
        return min(value.held_from(text, self._pos), held_from(text, self._pos, self._ends, self._tags.first))

    def _stash(self, at: int) -> None:
        """Store the text of the open block up to ``at``, and wait for more text. The text after ``at`` is held back."""
        segment = self._text[self._start : at]
        size = self._size + utf8_length(segment)
        if size > self._limit:
            self._overflow(at)
            return
        if self._has_fragments and self.state not in (self.state_literal, self.state_unread):
            body = segment if self._pieces else segment[len(self._opening) :]
            if body:
                self._out.append(Fragment(body))
        self._size = size
        self._pieces.append(segment)
        self._start = 0
        self._hold(at)

    def _is_oversize(self, at: int) -> bool:
        return self._size + utf8_length(self._text[self._start : at]) > self._limit

    def _overflow(self, at: int) -> None:
        """Abandon a block whose text up to ``at`` exceeds the limit (rule 9)."""
        raw = self._raw(at)
        end = characters_within(raw, self._limit + len(self._opening))
        self._out.append(Oversize(raw[:end]))
        self._reread(raw, end, at)

    def _close(self, at: int, end: int) -> None:
        """Emit the block whose body ends at ``at`` and whose closing tag ends at ``end``."""
        if self._is_oversize(at):
            self._overflow(at)
            return
        form: Literal["json", "xml"] = "json" if self._row in (None, JSON) else "xml"
        body = self._raw(at)[len(self._opening) :]
        alone = self._row.alone if self._row and not self._is_foreign else None
        is_bare = self._is_misspelled or (alone is not None and alone.fullmatch(body) is not None)
        is_unread = self.state == self.state_unread
        closing = self._text[at:end]
        meant = "" if self._meant == self._opening else self._meant
        self._out.append(Block(form, self._opening, body, closing, is_bare, is_unread, self._codes, meant))
        self._last = ""
        self._is_behind = self._drops_surplus
        self._leave()
        self._pos = end

    def _reject_at(self, at: int) -> None:
        """Abandon the open block at ``at``. Its opening tag becomes prose (rule 7), unless the block is too large, or
        only its closing tag is missing.
        """
        if self._is_oversize(at):
            self._overflow(at)
        elif not self._close_incomplete(at):
            self._reject()

    def _close_incomplete(self, at: int) -> bool:
        """Close the open block at ``at`` if only its closing tag is missing or misspelled. Return whether it was
        closed.
        """
        if not (self._drops_surplus and self._closing and self.state == self.state_literal):
            return False
        raw = self._raw(at)
        body = raw[len(self._opening) :].rstrip()
        spelling = spellings_of(self._closing).before(body)
        inner = body.removesuffix(spelling).rstrip()
        # At the end of the text, the end of the body may be missing, too.
        is_missing = not spelling and self._row is not None and at < len(self._text)
        if not (spelling or is_missing) or not reads_cleanly(
            self._row or JSON, self._meant, inner, self._closing, self._tags.rows.get(self._meant)
        ):
            return False
        self._gather(at)
        self._codes = tuple(dict.fromkeys((*self._codes, MISSPELLED_MARKER if spelling else MISSING_CLOSE)))
        self._close(self._start + len(self._opening) + len(inner), self._start + len(raw))
        return True

    def _reject(self) -> None:
        self._out.append(self._opening)
        self._last = self._opening
        if not self._is_foreign and not self._is_misspelled:
            self._lost.open(self._closing)
        self._reread(self._raw(self._pos), len(self._opening), self._pos)

    def _goes_with(self, other: str) -> bool:
        """Return whether the opening tag ``other`` can directly follow the opening tag of the current block."""
        return self._drops_surplus or (other != self._opening and self._tags.closing[other] == self._closing)

    def _may_be_tag(self, at: int) -> bool:
        """Return whether the text at ``at`` may be the beginning of an opening tag, including a misspelled one."""
        rest = self._text[at : at + _MAX_TAIL]
        return rest in self._tags.beginnings or (self._drops_surplus and self._tags.misspelled.may_begin(rest))

    def _is_pair(self, spelling: str) -> bool:
        """Return whether a misspelled tag stands for another opening tag of the same family. Returns False if
        ``spelling`` is "".
        """
        other = self._tags.misspelled[spelling] if spelling else self._meant
        return other != self._meant and self._tags.closing[other] == self._closing

    def _pass_surplus(self, at: int) -> None:
        """Emit the opening tag as a surplus marker, because another opening tag directly follows it (rule 14)."""
        self._out.append(FenceMark(self._raw(at), opening=True))
        self._last = ""
        self._leave()
        self._pos = at

    def _turn_literal(self, at: int) -> None:
        """Read the open block again from its beginning, as a literal body (rule 5)."""
        if self._is_oversize(at):
            self._overflow(at)
        elif self._closing:
            self._gather(at)
            self._row = None if self._row is JSON else self._row
            self._pos = self._start + len(self._opening)
            self._enter(self.state_literal, self._has_no_marker)
        else:
            self._reject()

    def _read_plainly(self, at: int) -> None:
        """Read the open block again from its beginning, without recognizing values (rule 5)."""
        self._value = OpenValue()
        self._ignores_values = True
        self._turn_literal(at)

    def _end_of_text(self) -> None:
        """Close or abandon a block that is open at the end of the text (rules 4, 5 and 7)."""
        # The text of the block is already in ``_pieces``, except for a backslash at the end if its escaped character
        # has not arrived.
        self._text = self._held
        self._held = ""
        if self._value.is_open:
            self._read_plainly(self._pos)
        elif self._is_whole:
            self._close(self._pos, self._pos)
        else:
            has_body = self.state not in (self.state_opened, self.state_unread)
            if not self._was_cut and self._close_incomplete(self._pos):
                return
            if has_body and not (self._was_cut or self._is_foreign):
                self._lost.count()
            self._reject()

    @property
    def _is_misspelled(self) -> bool:
        return without_space(self._opening) != self._meant

    @property
    def _is_whole(self) -> bool:
        """Whether the end of the text closes the open block (rule 4)."""
        if self.state != self.state_literal:
            return self.state == self.state_behind_json or (self.state == self.state_json and self._json.is_complete)
        if (row := self._row) is None or (self._was_cut and not row.whole):
            return False
        body = self._raw(self._pos)[len(self._opening) :]
        return reads_cleanly(row, self._meant, body, rows=self._tags.rows.get(self._meant))

    def _raw(self, at: int) -> str:
        return "".join([*self._pieces, self._text[self._start : at]])

    def _gather(self, at: int) -> None:
        """Move the text of the open block from ``_pieces`` back into the current text."""
        if self._pieces:
            self._text = self._raw(at) + self._text[at:]
            self._start = 0
            self._pieces = []
            self._size = -len(self._opening)

    def _reread(self, raw: str, done: int, at: int) -> None:
        """Leave the open block, and read its text again as prose, except for its first ``done`` characters.

        ``raw``: the text of the block up to ``at``.
        """
        if self._pieces:
            self._text = raw[done:] + self._text[at:]
            self._pos = 0
        else:
            self._pos = self._start + done
        self._leave()

    def _leave(self) -> None:
        self._opening = ""
        self._pieces = []
        self._value = OpenValue()
        self._enter(self.state_prose)


class LostCalls:
    """Finds lost calls: opening tags that are followed by their closing tag, with no body in between (rule 12).

    ``count``: called for each lost call.
    """

    def __init__(self, count: Callable[[], None]) -> None:
        self.count = count
        self._closing = ""  # The closing tag that is searched for, or "" if no search is in progress.
        self._tail = ""  # The last characters of the searched text, which may begin the closing tag.
        self._left = 0  # Number of characters left to search.

    @property
    def is_searching(self) -> bool:
        """Whether a search is in progress. If so, all prose must be passed to ``feed``."""
        return bool(self._closing)

    def open(self, closing: str) -> None:
        """Start a search for ``closing``, because an opening tag without a body has been found."""
        self._closing = closing
        self._tail = ""
        self._left = _MAX_LOST

    def close(self) -> None:
        """Stop the search, because another tag has been found."""
        self._closing = ""

    def feed(self, text: str) -> None:
        """Search the next prose for the closing tag."""
        if not self._closing:
            return
        searched = self._tail + text[: self._left]
        self._left -= len(text)
        self._tail = searched[1 - len(self._closing) :]
        if self._closing in searched:
            self.count()
            self.close()
        elif self._left <= 0:
            self.close()


Stop = Literal["more", "tag", "closed", "opened", "slip"]

_PLAIN_JSON = re.compile(r"[ \t\r\n,:0-9A-Za-z_.+\-]*+").match


class JsonBody:
    """A lexer for a JSON body. It tracks strings and the depth of brackets, but builds no values.

    The lexer starts after the first bracket, ``opened``. ``closing``: the tag that closes the block, or "" if the last
    bracket closes it. Strings can also be in single quotes, as in Python. An apostrophe in such a string ends the
    string, so the text after it is a slip. The lexer stops at one of these points, and returns its name:

        more    the end of the current text (or a backslash directly before it)
        tag     a possible tag outside strings; the sentinel determines whether it counts
        closed  the position after the last bracket if there is no closing tag; otherwise, a tag that closes the block
        opened  a tag that opens another block
        slip    an error worse than a small slip: a word or bracket right after a string, or an unexpected character
    """

    __slots__ = ("_closes", "_depth", "_first", "_last", "_quote")

    def __init__(self, opened: str, closing: str = "</") -> None:
        self._closes = not closing
        self._first = closing[:1]
        self._quote = ""  # The quotation mark that will end the current string, or "" outside strings.
        self._last = opened  # The last significant character outside strings.
        self._depth = 1

    @property
    def is_complete(self) -> bool:
        """Whether all brackets and strings are closed."""
        return not self._depth and not self._quote

    def is_content(self, text: str) -> bool:
        """Return whether all of ``text`` is content of the current string."""
        return bool(self._quote) and self._quote not in text and "\\" not in text

    def read(self, text: str, pos: int, stop: int) -> tuple[int, Stop]:
        """Read up to ``stop``. Return the position where the lexer stopped, and the reason."""
        while pos < stop:
            if self._quote:
                pos = IN_STRING[self._quote].match(text, pos, stop).end()  # type: ignore[union-attr]
                if pos == stop or text[pos] == "\\":  # The character after the backslash has not arrived yet.
                    return pos, "more"
                pos += 1
                self._quote = ""
                self._last = '"'
                continue
            end = _PLAIN_JSON(text, pos, stop).end()  # type: ignore[union-attr]
            if end > pos:
                run = text[pos:end].strip(" \t\r\n")
                if run:
                    if self._last == '"' and run[0] not in ",:":
                        return pos, "slip"
                    self._last = run[-1]
                pos = end
                if pos == stop:
                    break
            char = text[pos]
            if char == '"' and self._last in "{[,:":
                self._quote = char
                pos += 1
                continue
            if char == "<" or (char == self._first and not self._depth):
                return pos, "tag"
            if not self._accept(char):
                return pos, "slip"
            pos += 1
            if self._closes and not self._depth:
                return pos, "closed"
        return pos, "more"

    def read_tag(self, text: str, pos: int, opening: str, closing: str, *, final: bool) -> tuple[Stop, int]:
        """Return the role of a possible tag at ``pos``, and the end of the tag if it closes the block."""
        rest = text[pos : pos + len(closing)]
        if rest == closing:
            return "closed", pos + len(closing)
        if text.startswith(opening, pos):
            return ("closed" if self.is_complete else "opened"), pos
        if self.is_complete and (end := foreign_end(text, pos, closing, final=final)):
            return ("more" if end < 0 else "closed"), end
        if final and self.is_complete and closing.startswith(rest):
            return "closed", len(text)
        return ("more" if not final and (closing.startswith(rest) or opening.startswith(rest)) else "slip"), pos

    def _accept(self, char: str) -> bool:
        """Process one character that is neither plain JSON nor part of a string; return whether it is allowed here."""
        if char in IN_STRING:
            self._quote = char if self._last in "{[,:" else ""
            return bool(self._quote)
        if char in "{[":
            # If the block has no closing tag, a misplaced bracket is the only sign that the text is not JSON.
            if self._last == '"' or (self._closes and self._last not in "[:,"):
                return False
            self._depth += 1
        elif char in "}]":
            self._depth = max(self._depth - 1, 0)
        elif char != "`" or self._depth:
            return False
        self._last = char
        return True
