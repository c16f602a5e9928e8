"""Reasoning that a model writes into its text, in the markers of its family, and the calls at the end of it.

Thoughts may stand before the first visible character of the answer. Nothing in them is a call, except that some models
call without ending their thought first: tagged blocks in the last one count if only whitespace follows them, in the
thought and behind it, up to the end of the answer, which must not have been cut off. ``reasoned_calls`` has the same
rule for reasoning that a server sends apart. What may be such a block is held back until that is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from toolsim.response.pieces import Around, Block, BrokenCall, FenceMark, Fragment, Parser, Piece

THOUGHTS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "[THINK]": "[/THINK]",  # Mistral
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",  # MiniMax
    "<longcat_think>": "</longcat_think>",
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command
    "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus
    "◁think▷": "◁/think▷",  # Kimi
    "<|channel>thought": "<channel|>",  # Gemma
    "<|channel|>analysis<|message|>": "<|end|>",  # gpt-oss
    "<|start|>assistant<|channel|>analysis<|message|>": "<|end|>",
}
"""Closing marker by opening marker."""

_LONGEST = max(map(len, THOUGHTS))
_SPACE = re.compile(r"\s*+")


def thought_at(text: str, at: int, *, final: bool = True) -> str | None:
    """Return the marker that opens a thought at ``at``, "" if none does, None if more text is needed."""
    rest = text[at : at + _LONGEST]
    found = next((opening for opening in THOUGHTS if rest.startswith(opening)), "")
    is_undecided = not found and not final and any(opening.startswith(rest) for opening in THOUGHTS)
    return None if is_undecided else found


class Thoughts(Around[Parser, "LastCalls"]):
    """A parser around ``inner``, which gets what follows the thoughts; ``new`` makes the parsers of the thoughts."""

    def __init__(self, inner: Parser, new: Callable[[], Parser]) -> None:
        super().__init__(inner, LastCalls(takes_bare=False))
        self._new = new
        self._thought: Parser | None = None  # Reads the open thought.
        self._end = ""  # What closes it.
        self._text = ""  # What is undecided: the beginning of a marker.
        self._is_over = False  # Whether no further thought can come.

    @property
    def in_block(self) -> bool:
        """Whether text is being held back because it may be a call."""
        return super().in_block or (self._thought is not None and self._thought.in_block)

    def feed(self, text: str) -> Sequence[Piece]:
        """Return what ``text`` completes."""
        return self._inner.feed(text) if self._is_over else self._read(self._text + text)

    def finish(self, *, cut: bool = False) -> Sequence[Piece | BrokenCall]:
        """Return what is left at the end of the text. Nothing may be fed after it."""
        out: list[Piece | BrokenCall] = []
        if not self._is_over:
            out += self._read(self._text, final=True)
        if self._thought is not None:
            out += self._held.take(self._thought.finish(cut=cut))
        out += self._held.as_text() if cut else self._held.as_calls()
        return [*out, *self._inner.finish(cut=cut)]

    def _read(self, text: str, *, final: bool = False) -> Sequence[Piece]:
        out: list[Piece] = []
        at = 0
        while at < len(text):
            if self._thought is not None:
                found = text.find(self._end, at)
                end = found if found != -1 else len(text) if final else self._half_end(text, at)
                out += self._held.take(self._thought.feed(text[at:end]))
                at = end
                if found == -1:
                    break
                out += self._held.take(self._thought.finish(cut=True))
                out += self._held.add(self._end, is_text=False)
                self._thought = None
                at += len(self._end)
                continue
            found = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            out += self._held.add(text[at:found])
            at = found
            opening = thought_at(text, at, final=final)
            if opening is None:
                break
            out += self._held.as_text()
            if not opening:
                self._is_over = True
                return [*out, *self._inner.feed(text[at:])] if at < len(text) else out
            out.append(opening)
            at += len(opening)
            self._end = THOUGHTS[opening]
            self._thought = self._new()
        self._text = text[at:]
        return out

    def _half_end(self, text: str, start: int) -> int:
        """Return where the closing marker may begin that is incomplete at the end of ``text``, or its length."""
        sizes = range(min(len(self._end) - 1, len(text) - start), 0, -1)
        return len(text) - next((size for size in sizes if text.endswith(self._end[:size])), 0)


class LastCalls:
    """The blocks with which reasoning ends so far, with the whitespace and the markers beside them.

    ``takes_bare``: those that anybody may write in a sentence count too.
    """

    def __init__(self, *, takes_bare: bool) -> None:
        self._takes_bare = takes_bare
        self._held: list[Block | FenceMark | str] = []

    def __len__(self) -> int:
        return len(self._held)

    def take(self, pieces: Iterable[Piece | BrokenCall]) -> list[str]:
        """Take pieces of the reasoning; return what is text for certain."""
        out: list[str] = []
        for piece in pieces:
            if (isinstance(piece, Block) and (self._takes_bare or not piece.is_bare)) or (
                isinstance(piece, FenceMark) and (self._held or piece.opening)
            ):
                self._held.append(piece)
            elif not isinstance(piece, Fragment):
                out += self.add(piece if isinstance(piece, str) else piece.raw)
        return out

    def add(self, text: str, *, is_text: bool = True) -> list[str]:
        """Take text that may stand behind the blocks; return all of it if it is visible (``is_text``)."""
        if self._held and (not is_text or text.isspace()):
            self._held.append(text)
            return []
        return [*self.as_text(), text] if text else []

    def as_text(self) -> list[str]:
        """Return what is held back as text, and forget it."""
        held, self._held = self._held, []
        return [piece if isinstance(piece, str) else piece.raw for piece in held]

    def as_calls(self) -> list[Block | FenceMark]:
        """Return what is held back as blocks, and forget it."""
        held, self._held = self._held, []
        return [FenceMark(piece, opening=False) if isinstance(piece, str) else piece for piece in held]
