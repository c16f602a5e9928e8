"""What the sentinel makes of a text: prose as plain strings, and blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Block:
    """One call block, whole.

    ``body`` is all between the tags, verbatim; ``closing`` is "" where rule 3 or 4 closed it.
    """

    form: Literal["json", "xml"]
    opening: str
    body: str
    closing: str

    @property
    def raw(self) -> str:
        """The block as the model wrote it."""
        return self.opening + self.body + self.closing


@dataclass(frozen=True, slots=True)
class Oversize:
    """The beginning of a block that grew over the limit, as the model wrote it, opening tag included."""

    raw: str


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of the body of the open JSON block, ahead of its ``Block``: a preview, no part of the text's pieces.

    If the block turns out to be none, no ``Block`` follows, and its text is given out as prose.
    """

    text: str


Piece = str | Block | Oversize | Fragment
