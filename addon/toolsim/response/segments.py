"""The output of parsers: prose as plain strings, and blocks that may be calls; and the interface of a parser."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Literal, Protocol

from toolsim.response.verdict import Accepted, Rejected, Violation

IN_STRING = {quote: re.compile(rf"[^{quote}\\]*+(?:\\.[^{quote}\\]*+)*+", re.DOTALL) for quote in ('"', "'")}
"""The content of a string between its quotes: at most up to a backslash without its character."""


@dataclass(frozen=True, slots=True)
class Block:
    """One complete call block.

    ``body`` is everything between the tags, verbatim; ``closing`` is "" if rule 3 or 4 closed it. ``is_bare``: it
    may occur in a sentence about our tags (a name alone, a call in another syntax), and counts only if it stands alone.
    ``is_unread``: it does not begin like a call, so it is a failed call if it is alone on its lines, text otherwise.
    ``codes`` name the repairs of its tags; ``meant`` is the opening tag that a misspelled one was meant to be.
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
    """The beginning of a block that exceeded the limit, as the model wrote it, opening tag included."""

    raw: str


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of the body of the open JSON block, ahead of its ``Block``: a preview, which adds nothing to the text.

    If the block turns out not to be one, no ``Block`` follows, and its text is emitted as prose.
    """

    text: str


@dataclass(frozen=True, slots=True)
class FenceMark:
    """Text that is dropped with tagged blocks if they are calls: a line of a fence, or a surplus marker."""

    raw: str
    opening: bool


TaggedSegment = str | Block | Oversize | Fragment | FenceMark
"""The output of the sentinel."""


@dataclass(frozen=True, slots=True)
class Calls:
    """One unit of untagged calls: ``raw`` as the model wrote it, and its calls.

    ``ends``: the answer ends there.
    """

    raw: str
    calls: tuple[Accepted, ...]
    ends: bool = False


Segment = TaggedSegment | Calls


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """A complete answer that was held back, and its fault as a call, or as the demanded JSON.

    None: it is merely text.
    """

    raw: str
    refused: Rejected | Violation | None


class BlockState(Protocol):
    """The state of a text that arrives in pieces: what has started and not ended."""

    @property
    def in_block(self) -> bool:
        """Whether text is being held back because it may be a call."""

    @property
    def open_size(self) -> int:
        """How many characters of the open tagged block have arrived, 0 if none is open."""


class Parser(BlockState, Protocol):
    """Finds calls in a text that arrives in pieces. The segments that it returns add up to the text."""

    def feed(self, text: str) -> Sequence[Segment]:
        """Return what ``text`` completes."""

    def release(self) -> Sequence[Segment]:
        """Return what is held back only while the answer has nothing but text: now it has more."""

    def finish(self, *, cut: bool = False) -> Sequence[Segment | BrokenCall]:
        """Return what is left at the end of the text. Nothing may be fed after it.

        ``cut``: the text is known not to be all that the model would have written.
        """


class ParserWrapper[Inner: BlockState, Held: Sized]:
    """A parser around another one; it holds back some of that parser's segments."""

    def __init__(self, inner: Inner, held: Held) -> None:
        self._inner = inner
        self._held = held

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'holding, ' if self._held else ''}{self._inner})"

    @property
    def in_block(self) -> bool:
        """Whether text is being held back because it may be a call."""
        return bool(self._held) or self._inner.in_block

    @property
    def open_size(self) -> int:
        """How many characters of the open tagged block have arrived, 0 if none is open."""
        return self._inner.open_size

    def release(self) -> Sequence[Segment]:
        """Return what is held back only while the answer has nothing but text: none of it, unless a parser says so."""
        return []


class TextBuffer[Inner: Parser](ParserWrapper[Inner, list[str]]):
    """Holds an answer's text back, as long as the answer has nothing else and ``_holds`` says so."""

    def __init__(self, inner: Inner) -> None:
        super().__init__(inner, [])
        self._is_over = False  # Whether nothing is held back any more.

    def feed(self, text: str) -> Sequence[Segment]:
        """Return what ``text`` completes."""
        pieces = self._inner.feed(text)
        return pieces if self._is_over else self._take(pieces)

    def release(self) -> Sequence[Segment]:
        """Return what is held back only while the answer has nothing but text: now it has more."""
        held, self._held = self._held, []
        self._is_over = self._is_over or bool(held)
        return [*held, *self._inner.release()]

    def _holds(self, text: str) -> bool | None:
        """Return whether a text is held back; None: it passes, and nothing is decided yet."""
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
    """Yield the segments, with adjacent prose joined: where the parser split it means nothing."""
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
    """Split the segments before the last ``size`` characters; if these are not all prose, everything is the end."""
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
    """Return the number of leading characters of ``text`` that take at most ``size`` bytes of UTF-8."""
    if text.isascii():
        return min(size, len(text))
    return bisect_right(range(len(text) + 1), size, key=lambda n: utf8_length(text[:n])) - 1


def end_of(pattern: re.Pattern[str], text: str, pos: int, stop: int | None = None) -> int:
    """Return the end of the match of ``pattern`` at ``pos``, ``pos`` if there is none."""
    match = pattern.match(text, pos, len(text) if stop is None else stop)
    return pos if match is None else match.end()
