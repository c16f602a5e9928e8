"""The segments that parsers return (prose as plain strings, and blocks that may be calls), and the parser interface."""

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
    """A complete call block."""

    form: Literal["json", "xml"]
    opening: str
    body: str
    """The text between the tags, verbatim."""
    closing: str
    """The closing tag, or "" if something else closed the block (rules 3 and 4 of ``sentinel``)."""
    is_bare: bool = False
    """Whether the block could also be a mention of toolsim's tags in a sentence, for example because it contains only a
    name. Such a block counts as a call only if it stands alone.
    """
    is_unread: bool = False
    """Whether the body does not begin like a call. Such a block is a failed call if it is alone on its lines, otherwise
    text.
    """
    codes: tuple[str, ...] = ()
    """The codes of the repairs of the tags."""
    meant: str = ""
    """The intended opening tag if the tag is misspelled, otherwise ""."""

    @property
    def raw(self) -> str:
        """The block as the model wrote it."""
        return self.opening + self.body + self.closing


@dataclass(frozen=True, slots=True)
class Oversize:
    """The beginning of a block that exceeded the limit, as the model wrote it, including the opening tag."""

    raw: str


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of an open JSON block's body, emitted before the ``Block`` itself.

    It is only a preview, because the complete text follows later: in the ``Block`` or, if the body turns out not to be
    a block, as prose.
    """

    text: str


@dataclass(frozen=True, slots=True)
class FenceMark:
    """A fence line or surplus marker next to tagged blocks. It is dropped if the blocks are calls."""

    raw: str
    opening: bool


TaggedSegment = str | Block | Oversize | Fragment | FenceMark
"""A segment that the sentinel returns."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Adjacent untagged calls that form one unit, such as a list or a fence."""

    raw: str
    """The unit as the model wrote it."""
    calls: tuple[Accepted, ...]
    ends: bool = False
    """Whether the answer ends after these calls."""


Segment = TaggedSegment | Calls


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """A complete answer that was held back because it could be a faulty call, or faulty JSON."""

    raw: str
    refused: Rejected | Violation | None
    """The fault, or None if the answer is ordinary text."""


class BlockState(Protocol):
    """The state of an incremental parser: whether a block is open, and how much of it has arrived."""

    @property
    def in_block(self) -> bool:
        """Whether text is held back because it may be a call."""

    @property
    def open_size(self) -> int:
        """Number of characters of the open tagged block received so far; 0 if no block is open."""


class Parser(BlockState, Protocol):
    """Finds calls in text that arrives in chunks. The returned segments together are the complete text."""

    def feed(self, text: str) -> Sequence[Segment]:
        """Return the segments that ``text`` completes."""

    def release(self) -> Sequence[Segment]:
        """Return the segments that were held back because the answer might contain only text. Called when other output
        arrives.
        """

    def finish(self, *, cut: bool = False) -> Sequence[Segment | BrokenCall]:
        """Return the remaining segments at the end of the text. No text may be fed afterwards.

        ``cut``: the text is known to be incomplete.
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
        """Number of characters of the open tagged block received so far; 0 if no block is open."""
        return self._inner.open_size

    def release(self) -> Sequence[Segment]:
        """Return the segments that were held back because the answer might contain only text. By default, there are
        none.
        """
        return []


class TextBuffer[Inner: Parser](ParserWrapper[Inner, list[str]]):
    """Holds back an answer's text as long as the answer contains only text and ``_holds`` returns True."""

    def __init__(self, inner: Inner) -> None:
        super().__init__(inner, [])
        self._is_over = False  # Whether no more text is held back.

    def feed(self, text: str) -> Sequence[Segment]:
        """Return the segments that ``text`` completes."""
        pieces = self._inner.feed(text)
        return pieces if self._is_over else self._take(pieces)

    def release(self) -> Sequence[Segment]:
        """Return the segments that were held back because the answer might contain only text. Called when other output
        arrives.
        """
        held, self._held = self._held, []
        self._is_over = self._is_over or bool(held)
        return [*held, *self._inner.release()]

    def _holds(self, text: str) -> bool | None:
        """Return whether to hold back ``text``. None means that ``text`` passes, but later text might still be held
        back.
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
    """Yield the segments with adjacent prose joined, so that the result does not depend on where the parser split the
    prose.
    """
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
    """Split the segments before the last ``size`` characters. If these are not all prose, the first part is empty."""
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
    """Return how many leading characters of ``text`` fit into ``size`` bytes of UTF-8."""
    if text.isascii():
        return min(size, len(text))
    return bisect_right(range(len(text) + 1), size, key=lambda n: utf8_length(text[:n])) - 1


def end_of(pattern: re.Pattern[str], text: str, pos: int, stop: int | None = None) -> int:
    """Return the end of the match of ``pattern`` at ``pos``, or ``pos`` if the pattern does not match."""
    match = pattern.match(text, pos, len(text) if stop is None else stop)
    return pos if match is None else match.end()
