"""The output of parsers (prose as plain strings, and blocks that may be calls), and the interface of a parser."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Literal, Protocol

from toolsim.response.verdict import Accepted, Rejected, Violation

IN_STRING = {quote: re.compile(rf"[^{quote}\\]*+(?:\\.[^{quote}\\]*+)*+", re.DOTALL) for quote in ('"', "'")}
"""Patterns for the content of a string up to its closing quote, or up to a backslash at the end of the text."""


@dataclass(frozen=True, slots=True)
class Block:
    """One complete call block.

    ``body``: the text between the tags, verbatim; ``closing``: "" if rule 3 or 4 of ``sentinel`` closed the block.
    ``is_bare``: the block can occur in a sentence about toolsim's tags (only a name, a call in another syntax), and
    counts only if it stands alone. ``is_unread``: the block does not begin like a call, so it is a failed call if it is
    alone on its lines, otherwise text. ``codes``: the repairs of the tags; ``meant``: the intended opening tag if the
    tag is misspelled.
    """

    form: Literal["json", "xml"]
    opening: str
    body: str
    closing: str
    is_bare: bool = False
    is_unread: bool = False
    codes: tuple[str, ...] = ()
    meant: str = ""

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
    """Text that is dropped together with tagged blocks if they are calls: a fence line, or a surplus marker."""

    raw: str
    opening: bool


TaggedSegment = str | Block | Oversize | Fragment | FenceMark
"""A segment that the sentinel returns."""


@dataclass(frozen=True, slots=True)
class Calls:
    """One unit of untagged calls: ``raw`` as the model wrote it, and its calls.

    ``ends``: whether the answer ends after these calls.
    """

    raw: str
    calls: tuple[Accepted, ...]
    ends: bool = False


Segment = TaggedSegment | Calls


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """A complete answer that was held back, and its fault as a call or as the requested JSON.

    If the fault is None, the answer is text.
    """

    raw: str
    refused: Rejected | Violation | None


class BlockState(Protocol):
    """The state of a parser whose text arrives in pieces: whether a block is open, and how much of it has arrived."""

    @property
    def in_block(self) -> bool:
        """Whether text is held back because it may be a call."""

    @property
    def open_size(self) -> int:
        """Number of characters of the open tagged block received so far; 0 if no block is open."""


class Parser(BlockState, Protocol):
    """Finds calls in text that arrives in pieces. The returned segments together are the complete text."""

    def feed(self, text: str) -> Sequence[Segment]:
        """Return the segments that ``text`` completes."""

    def release(self) -> Sequence[Segment]:
        """Return the segments held back while the answer consisted of text, because other output has arrived."""

    def finish(self, *, cut: bool = False) -> Sequence[Segment | BrokenCall]:
        """Return the remaining segments at the end of the text. No text may be fed afterwards.

        ``cut``: the text is known to be incomplete.
        """


class ParserWrapper[Inner: BlockState, Held: Sized]:
    """A parser around another parser; it holds back some of the inner parser's segments."""

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
        """Return the segments that were held back only while the answer consisted of text; empty by default."""
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
        """Return the segments held back while the answer consisted of text, because other output has arrived."""
        held, self._held = self._held, []
        self._is_over = self._is_over or bool(held)
        return [*held, *self._inner.release()]

    def _holds(self, text: str) -> bool | None:
        """Return whether ``text`` is held back, or None if it passes and the decision on later text is still open."""
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
    """Yield the segments with adjacent prose joined, because it does not matter where the parser split it."""
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
    """Return the number of bytes of ``text`` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def characters_within(text: str, size: int) -> int:
    """Return the number of leading characters of ``text`` that take at most ``size`` bytes in UTF-8."""
    if text.isascii():
        return min(size, len(text))
    return bisect_right(range(len(text) + 1), size, key=lambda n: utf8_length(text[:n])) - 1


def end_of(pattern: re.Pattern[str], text: str, pos: int, stop: int | None = None) -> int:
    """Return the end of the match of ``pattern`` at ``pos``, or ``pos`` if the pattern does not match."""
    match = pattern.match(text, pos, len(text) if stop is None else stop)
    return pos if match is None else match.end()
