"""The empty line between the texts of two messages of a backend, so that they do not run together.

1. It is read like text: it begins a line, as it would for a model, so that a call that is a whole message stands alone.
2. It is whitespace: it is held back until other text follows, and dropped beside a call.
3. If something stands between the two texts, a client that gets a list of items has them in separate items, without an
   empty line. A chat message has only one text.
4. A tagged block that is open where a message ends continues in the next one: no empty line gets into its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolsimlib.plan import Plan
from toolsimlib.response.parser import Parser
from toolsimlib.response.retry import FaultFinder
from toolsimlib.response.untagged import Piece
from toolsimlib.wire.dialect import APIS

EMPTY_LINE = "\n\n"


class Parting:
    """Parts the texts of one choice."""

    def __init__(self, plan: Plan, parser: Parser | None, faults: FaultFinder) -> None:
        self._parser = parser
        self._faults = faults
        self._has_one_text = not APIS[plan.client].text_follows_calls
        self._has_text = False  # Whether the client has any.
        self._is_behind_text = False  # Whether that was the last thing it got, and a message has ended since.

    def spoke(self) -> None:
        """Note that the client gets text."""
        self._has_text, self._is_behind_text = True, False

    def called(self) -> None:
        """Note that a call has come."""
        self._is_behind_text = False

    def pieces(self, *, is_speaking: bool) -> Sequence[Piece]:
        """Return what the parser makes of an empty line, as far as the client gets it; ``is_speaking``: behind text."""
        self._is_behind_text = self._is_behind_text or is_speaking
        if self._parser is not None and self._parser.open_size:
            return []
        self._faults.note(EMPTY_LINE)
        pieces = self._parser.feed(EMPTY_LINE) if self._parser is not None else [EMPTY_LINE]
        joins = self._is_behind_text or (self._has_one_text and self._has_text)
        return pieces if joins or not all(isinstance(piece, str) and piece.isspace() for piece in pieces) else []
