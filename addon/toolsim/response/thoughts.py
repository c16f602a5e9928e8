"""Reasoning that a model writes into its text, in the markers of its family, and the calls at the end of it.

A thought may stand before the first visible character. Nothing in it is a call, except that some models call without
ending their thought first: blocks in it count if only whitespace follows them, in the thought and behind it, up to the
end of the answer, which must not have been cut off. ``reasoned_calls`` has the same rule for reasoning that a server
sends apart. What may be such a block is held back until that is known.
"""

from __future__ import annotations

from collections.abc import Iterable

from toolsim.response.pieces import Block, FenceMark, Fragment, TaggedPiece

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


def thought_at(text: str, at: int, *, final: bool = True) -> str | None:
    """Return the marker that opens a thought at ``at``, "" if none does, None if more text is needed."""
    rest = text[at : at + _LONGEST]
    found = next((opening for opening in THOUGHTS if rest.startswith(opening)), "")
    is_undecided = not found and not final and any(opening.startswith(rest) for opening in THOUGHTS)
    return None if is_undecided else found


class ThoughtCalls:
    """The blocks at the end of the thought so far, with the whitespace and the markers behind them."""

    def __init__(self) -> None:
        self._held: list[Block | str] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    def take(self, pieces: Iterable[TaggedPiece]) -> list[TaggedPiece]:
        """Take pieces of the thought; return what is text for certain."""
        out: list[TaggedPiece] = []
        for piece in pieces:
            if isinstance(piece, Block) and not piece.is_bare and not piece.is_unread:
                self._held.append(piece)
            elif not isinstance(piece, Fragment):
                text = piece if isinstance(piece, str) else piece.raw
                out += self.add(text, is_text=not isinstance(piece, FenceMark))
        return out

    def add(self, text: str, *, is_text: bool = True) -> list[TaggedPiece]:
        """Take text that may stand behind the blocks; return all of it if it is visible (``is_text``)."""
        if self._held and (not is_text or text.isspace()):
            self._held.append(text)
            return []
        return [*self.as_text(), text] if text else []

    def as_text(self) -> list[TaggedPiece]:
        """Return what is held back as text, and forget it."""
        held, self._held = self._held, []
        return [piece if isinstance(piece, str) else piece.raw for piece in held]

    def as_calls(self) -> list[TaggedPiece]:
        """Return what is held back as blocks, and forget it."""
        held, self._held = self._held, []
        return [FenceMark(piece, opening=False) if isinstance(piece, str) else piece for piece in held]
