"""The parser interface, and the segments that parsers return. Prose is returned as strings, and possible calls as
blocks.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Literal, Protocol

from toolsim.response.verdict import Accepted, Rejected, Violation

IN_STRING = {quote: re.compile(rf"[^{quote}\\]*+(?:\\.[^{quote}\\]*+)*+", re.DOTALL) for quote in ('"', "'")}
"""Patterns for the content of a string, by quotation mark. A match ends at the closing quotation mark, or at a
backslash at the end of the text.
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A complete tagged block, which may be a call."""

    form: Literal["json", "xml"]
    opening: str
    body: str
    """The text between the tags, verbatim."""
    closing: str
    """The closing tag, or "" if the block was closed in another way (rules 3 and 4 of ``sentinel``)."""
    is_bare: bool = False
    """Whether the block might be part of a sentence about toolsim's tags, for example because it contains only a name.
    If so, the block counts as a call only if it stands alone.
    """
    is_unread: bool = False
    """Whether the body lacks the beginning of a call. Such a block is a failed call if it is alone on its lines,
    otherwise text.
    """
    codes: tuple[str, ...] = ()
    """The codes of repairs to the tags."""
    meant: str = ""
    """The correct spelling of the opening tag if the tag is misspelled, otherwise ""."""

    @property
    def raw(self) -> str:
        """The block as the model wrote it."""
        return self.opening + self.body + self.closing


@dataclass(frozen=True, slots=True)
class Oversize:
    """The beginning of a block that exceeds the size limit, including the opening tag, as the model wrote it."""

    raw: str


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a JSON block that is still being received. The arguments in it can be streamed before the block ends.

    A fragment is only a preview. The complete text follows later, as a ``Block`` or, if it turns out not to be a block,
    as prose.
    """

    text: str


@dataclass(frozen=True, slots=True)
class FenceMark:
    """The line of a code fence, or a surplus marker, next to tagged blocks. It is dropped if the blocks are calls."""

    raw: str
    opening: bool


TaggedSegment = str | Block | Oversize | Fragment | FenceMark
"""A segment that the sentinel returns."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Adjacent untagged calls that belong together, such as the calls in a list or in a code fence."""

    raw: str
    """The text of the calls as the model wrote it."""
    calls: tuple[Accepted, ...]
    ends: bool = False
    """Whether the answer ends after these calls."""


Segment = TaggedSegment | Calls


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """The text of a complete answer that was held back because it might be a broken call or violate the requested
    format.
    """

    raw: str
    refused: Rejected | Violation | None
    """The verdict if the text is a broken call or violates the requested format; None if it is ordinary text."""


class BlockState(Protocol):
    """The state of a parser that reads chunks: whether a block is open, and how much of it has arrived."""

    @property
    def in_block(self) -> bool:
        """Whether text is held back because it may be a call."""

    @property
    def open_size(self) -> int:
        """Number of characters received so far of the tagged block that is being read, or 0."""


class Parser(BlockState, Protocol):
    """Finds calls in text that arrives in chunks. Apart from ``Fragment``s, the returned segments add up to the
    complete text.
    """

    def feed(self, text: str) -> Sequence[Segment]:
        """Read the next chunk of text, and return the segments that are now complete."""

    def release(self) -> Sequence[Segment]:
        """Return the segments that were held back in case the answer consists only of text. Called when anything other
        than text arrives.
        """

    def finish(self, *, cut: bool = False) -> Sequence[Segment | BrokenCall]:
        """Return the remaining segments at the end of the text. Do not call ``feed`` afterwards.

        ``cut``: whether the text is known to be incomplete.
        """


class ParserWrapper[Inner: BlockState, Held: Sized]:
    """A parser that wraps another parser, and holds back some of the segments that the inner parser returns."""

    def __init__(self, inner: Inner, held: Held) -> None:
        self._inner = inner
        self._held = held

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'holding, ' if self._held else ''}{self._inner})"

    @property
    def in_block(self) -> bool:
        """Whether text is held back because it may be a call."""
        return bool(self._held) or self._inner.in_block

    @property
    def open_size(self) -> int:
        """Number of characters received so far of the tagged block that is being read, or 0."""
        return self._inner.open_size

    def release(self) -> Sequence[Segment]:
        """Return the segments that were held back in case the answer consists only of text. By default, return []."""
        return []


class TextBuffer[Inner: Parser](ParserWrapper[Inner, list[str]]):
    """Holds back the text of an answer for as long as ``_holds`` returns True and no call is found."""

    def __init__(self, inner: Inner) -> None:
        super().__init__(inner, [])
        self._is_over = False  # Whether all further segments are returned immediately.

    def feed(self, text: str) -> Sequence[Segment]:
        """Read the next chunk of text, and return the segments that are now complete."""
        pieces = self._inner.feed(text)
        return pieces if self._is_over else self._take(pieces)

    def release(self) -> Sequence[Segment]:
        """Return the segments that were held back in case the answer consists only of text. Called when anything other
        than text arrives.
        """
        held, self._held = self._held, []
        self._is_over = self._is_over or bool(held)
        return [*held, *self._inner.release()]

    def _holds(self, text: str) -> bool | None:
        """Return True to hold back ``text``, None to release only ``text``, or False to release this and all later
        text.
        """
        raise NotImplementedError

    def _take[P: (Segment, Segment | BrokenCall)](self, pieces: Iterable[P]) -> list[P]:
        out: list[P] = []
        for piece in pieces:
            holds = isinstance(piece, str) and not self._is_over and self._holds(piece)
            if holds and isinstance(piece, str):
                self._held.append(piece)
            else:
                self._is_over = self._is_over or holds is not None
                out += [*self._held, piece]
                self._held = []
        return out


def joined[Other](pieces: Iterable[str | Other]) -> Iterator[str | Other]:
    """Yield the segments, with adjacent prose joined, because the parser can split prose anywhere."""
    prose: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            prose.append(piece)
            continue
        if prose:
            yield "".join(prose)
            prose = []
        yield piece
    if prose:
        yield "".join(prose)


def split_end[Other](pieces: Sequence[str | Other], size: int) -> tuple[Sequence[str | Other], Sequence[str | Other]]:
    """Split the segments so that the second part contains the last ``size`` characters.

    The first part is empty if the last characters are not all prose.
    """
    at = len(pieces)
    while size > 0 and at and isinstance(piece := pieces[at - 1], str):
        at, size = at - 1, size - len(piece)
    if size > 0 or at == len(pieces):
        return [], pieces
    text = str(pieces[at])
    return [*pieces[:at], *filter(None, [text[:-size]])] if size else pieces[:at], [text[-size:], *pieces[at + 1 :]]


def utf8_length(text: str) -> int:
    """Return the length of ``text`` in UTF-8, in bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def characters_within(text: str, size: int) -> int:
    """Return the number of characters at the beginning of ``text`` that fit into ``size`` bytes of UTF-8."""
    if text.isascii():
        return min(size, len(text))
    return bisect_right(range(len(text) + 1), size, key=lambda n: utf8_length(text[:n])) - 1


def end_of(pattern: re.Pattern[str], text: str, pos: int, stop: int | None = None) -> int:
    """Return the end of the match of ``pattern`` at ``pos``, or ``pos`` if the pattern does not match."""
    match = pattern.match(text, pos, len(text) if stop is None else stop)
    return pos if match is None else match.end()
