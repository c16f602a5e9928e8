"""Treats tagged calls in inline code and in Markdown quotations as text, because the model only shows them.

    > <tool_call>{…}</tool_call>                    a quotation: its line begins with ">"
    Write `<tool_call>{…}</tool_call>` to call it.  inline code: between equally many backticks

1. A block is quoted if the line of its opening tag begins with ``>``, regardless of what follows.
2. A block is in inline code if an unpaired run of backticks precedes it on its line, and a run of the same length
   follows on the line on which the block ends. The block and the text after it are held back until the end of this
   line. If no such run follows, the backticks have no meaning, and the block counts as a call.
3. Backticks at the end of a line do not open inline code. They open a code fence, and calls in a fence can count (see
   ``untagged``).
4. If a block may be quoted, its beginning is not streamed, so its ``Fragment``s are dropped.
5. A block that may be part of a sentence about calls (``Block.is_bare``) counts as a call only if it stands alone. This
   means that its line contains only blocks, or that only blocks and whitespace follow until the end. The block is held
   back until this is known. A block that does not begin like a call (``Block.is_unread``) must also be alone on its
   lines.
6. No text is lost, and the result does not depend on how the text is split.

Untagged calls do not need these rules, since they must be alone on their lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from toolsim.core.plan import Plan
from toolsim.response.segments import Block, FenceMark, Fragment, Oversize, ParserWrapper, TaggedSegment
from toolsim.response.sentinel import Sentinel

_HEADER_BYTES = 4096
"""Maximum size of the name, quotes and escapes of a call, in addition to its arguments, in bytes."""

_MAX_LINE = 4096
"""Maximum number of characters that are held back after a block while waiting for closing backticks."""

_MAX_HELD = 16
"""Maximum number of blocks and texts that are held back while waiting for closing backticks."""

_MARK = re.compile(r"`+")
_BEGINS = re.compile(r"[ \t\r]*(>)?")


class Quotation(ParserWrapper[Sentinel, list[str | Block | Oversize]]):
    """Wraps the sentinel, and returns blocks in inline code and Markdown quotations as text."""

    def __init__(self, sentinel: Sentinel, count_lost: Callable[[], None] = lambda: None) -> None:
        self._count_lost = count_lost
        # The inherited ``_held`` contains a block that may be in inline code, and later segments on the same line.
        super().__init__(sentinel, [])
        self._line = _Line()
        self._tail = ""  # The text after the held-back blocks.
        self._closing = _MARK  # A pattern for the backticks that would close the inline code.
        self._bare: Block | None = None  # A block that counts as a call only if it stands alone; None if there is none.
        self._space = ""  # The whitespace after the block in ``_bare``.

    @property
    def in_block(self) -> bool:
        """Whether text is held back because it may be a call."""
        return self._bare is not None or bool(self._held) or self._inner.in_block

    @property
    def _may_be_shown(self) -> bool:
        """Whether a block at this position is in a quotation, or may be in inline code."""
        return bool(self._held) or self._line.mark > 0 or self._line.is_quotation

    def feed(self, text: str) -> Sequence[TaggedSegment]:
        """Read the next chunk of text, and return the segments that are now complete."""
        segments = self._inner.feed(text)
        if not segments:
            return segments
        # The usual case is a single segment of prose.
        if self._bare is None and len(segments) == 1 and isinstance(segment := segments[0], str):
            return segments if not self._held and self._line.is_unchanged_by(segment) else self._in_line(segments)
        return self._take(segments)

    def finish(self, *, cut: bool = False) -> list[TaggedSegment]:
        """Return the remaining segments at the end of the text. Do not call ``feed`` afterwards.

        ``cut``: whether the text is known to be incomplete.
        """
        out = self._take(self._inner.finish(cut=cut))
        out += self._in_line(self._end_bare())
        return out + self._read_tail("", is_all=True)

    def _take(self, segments: Iterable[TaggedSegment]) -> list[TaggedSegment]:
        return self._in_line(self._alone(segments))

    def _in_line(self, segments: Iterable[TaggedSegment]) -> list[TaggedSegment]:
        """Return the segments, with blocks in quotations and inline code as text (rules 1 and 2)."""
        out: list[TaggedSegment] = []
        for found in segments:
            segment = found.raw if isinstance(found, FenceMark) and self._may_be_shown else found
            if isinstance(segment, str):
                if self._held:
                    out += self._read_tail(segment)
                else:
                    self._line.read(segment)
                    out.append(segment)
            elif isinstance(segment, FenceMark):
                self._line.read_block()
                out.append(segment)
            elif not isinstance(segment, Fragment):
                # A block follows the held-back text, so no more backticks can follow the text.
                out += self._read_tail("", is_all=True, goes_on=True)
                out += self._block(segment)
            elif not self._may_be_shown:
                out.append(segment)
        return out

    def _alone(self, segments: Iterable[TaggedSegment]) -> Iterator[TaggedSegment]:
        """Yield the segments. A block that must stand alone but does not is yielded as text (rule 5)."""
        for segment in segments:
            if self._bare is not None and isinstance(segment, str):
                text = self._space + segment
                space = text[: len(text) - len(text.lstrip())]
                if not self._line.has_text and "\n" in space[:_MAX_LINE]:
                    yield from self._end_bare(text)
                elif len(space) == len(text) <= _MAX_LINE:
                    self._space = text
                else:
                    raw = self._text_of(self._bare)
                    self._bare, self._space = None, ""
                    yield raw + text
                continue
            yield from self._end_bare()
            if not isinstance(segment, Block) or not (segment.is_bare or segment.is_unread):
                yield segment
            elif self._held or self._line.mark or (segment.is_unread and self._line.has_text):
                yield self._text_of(segment)
            else:
                self._bare = segment

    def _text_of(self, block: Block) -> str:
        """Return the text of a block that does not stand alone, and count the block as a lost call."""
        self._count_lost()
        return block.raw

    def _end_bare(self, text: str = "") -> list[TaggedSegment]:
        """Release the block in ``_bare``, if any, because it stands alone. Return the block and the text after it."""
        if self._bare is None:
            return []
        block, space = replace(self._bare, is_unread=False), text or self._space
        self._bare, self._space = None, ""
        return [block, space] if space else [block]

    def _block(self, block: Block | Oversize) -> list[TaggedSegment]:
        self._line.read_block()
        if self._line.is_quotation:
            return [block.raw]
        if self._held or self._line.mark:
            self._closing = re.compile(f"(?<!`)`{{{self._line.mark}}}(?!`)") if not self._held else self._closing
            self._held.append(block)
            return []
        return [block]

    def _read_tail(self, text: str, *, is_all: bool = False, goes_on: bool = False) -> list[TaggedSegment]:
        """Process text after a held-back block. Return the segments that are no longer held back (rule 2).

        ``is_all``: whether a block or the end of the answer directly follows. ``goes_on``: whether another block
        follows on the same line.
        """
        if not self._held:
            return []
        start = max(0, len(self._tail) - self._line.mark)
        self._tail += text
        closing = self._closing.search(self._tail, start)
        end = self._tail.find("\n", 0, closing.start() if closing else len(self._tail))
        if closing is not None and end == -1 and closing.end() <= _MAX_LINE:
            if closing.end() == len(self._tail) and not is_all:
                return []  # Another backtick may follow. The number of backticks would then not match.
            held: list[TaggedSegment] = [segment if isinstance(segment, str) else segment.raw for segment in self._held]
            return self._release(held, closing.end())
        is_over = len(self._held) >= _MAX_HELD if goes_on else is_all
        if end != -1 or is_over or len(self._tail) > _MAX_LINE:
            return self._release([*self._held], 0)
        if goes_on:
            self._held.append(self._tail)
            self._tail = ""
        return []

    def _release(self, held: list[TaggedSegment], read: int) -> list[TaggedSegment]:
        """Return the ``held`` segments and the text after them. The first ``read`` characters of this text have already
        been processed.
        """
        tail, self._held, self._tail = self._tail, [], ""
        self._line.close_mark()
        self._line.read(tail[read:])
        return [*held, tail] if tail else held


class _Line:
    """The state of the current line. ``is_quotation``: whether the line begins with ``>``."""

    def __init__(self) -> None:
        self.is_quotation = False
        self.has_text = False  # Whether the line contains visible text other than blocks.
        self._is_blank = True  # Whether the line contains only whitespace so far.
        self._open = 0  # The number of unpaired backticks that may open inline code; 0 if there are none.
        self._run = 0  # The number of backticks at the end of the text so far. More of them may follow.

    @property
    def mark(self) -> int:
        """The number of unpaired backticks, assuming that no more backticks follow; 0 if there are none."""
        if not self._open or not self._run:
            return self._open or self._run
        return 0 if self._open == self._run else self._open

    def is_unchanged_by(self, text: str) -> bool:
        """Return whether ``text`` leaves the state of the line unchanged. If so, it need not be read."""
        return self.has_text and not self._run and not self._is_blank and "\n" not in text and "`" not in text

    def read(self, text: str) -> None:
        """Update the state of the line with the next text."""
        at = text.rfind("\n") + 1
        if at:
            self.is_quotation = False
            self.has_text = False
            self._is_blank = True
            self._open = 0
            self._run = 0
        self.has_text = self.has_text or not (text[at:].isspace() or at == len(text))
        if self._is_blank:
            found = _BEGINS.match(text, at)
            assert found is not None
            self.is_quotation = found[1] is not None
            self._is_blank = found.end() == len(text) and not self.is_quotation
        if self._run and at < len(text) and text[at] != "`":
            self._end_run()
        for found in _MARK.finditer(text, at) if "`" in text else ():
            self._run += found.end() - found.start()
            if found.end() < len(text):
                self._end_run()

    def read_block(self) -> None:
        """Process a block. Its content does not affect the state of the line."""
        self._end_run()
        self._is_blank = False

    def close_mark(self) -> None:
        """Forget the opening backticks, because they have been paired or can no longer be paired."""
        self._open = self._run = 0

    def _end_run(self) -> None:
        self._open = self.mark
        self._run = 0


def block_limit(plan: Plan) -> int:
    """Return the maximum size of a call, in bytes for tagged calls, and in characters for untagged calls."""
    return plan.policy.max_tool_bytes + _HEADER_BYTES


def tagged_calls(
    plan: Plan,
    *,
    fragments: bool = False,
    keeps_unread: bool = False,
    count_lost: Callable[[], None] = lambda: None,
) -> Quotation:
    """Return the parser for tagged calls that a plan requires. The other arguments are passed to ``Sentinel``."""
    sentinel = Sentinel(
        plan.policy.sentinel,
        use_tool=plan.policy.use_tool,
        foreign=plan.reads_untagged,
        drops_surplus=plan.policy.repair == "safe",
        limit=block_limit(plan),
        fragments=fragments,
        keeps_unread=keeps_unread,
        count_lost=count_lost,
        forms=plan.policy.forms,
    )
    return Quotation(sentinel, count_lost)
