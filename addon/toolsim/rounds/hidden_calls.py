"""Stores calls that a client was not shown, for its next requests.

A chat message has no place for calls to tools that the client does not run: the client gets only the text, and sends
only the text back. The model would not know the results. So the calls of an answer are stored here, and inserted before
that answer when its conversation continues.

An answer is identified by all messages before it, its owner, the servers named in these, and its own text and calls:
a client that presents the same data with the same key has received that answer. The number of answers and their size
are bounded (``FairCache``), and the model can look up lost results again.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolsim.core.conversation import Called, Text
from toolsim.core.fair_cache import FairCache

MAX_ANSWERS = 1_000
MAX_BYTES = 16 * 1024 * 1024


class HiddenCalls:
    """Calls with their outputs, by the answer that followed them."""

    def __init__(self) -> None:
        self._calls: FairCache[tuple[Called, ...]] = FairCache(MAX_ANSWERS, MAX_BYTES)

    def put(self, answer: bytes, calls: Sequence[Called], owner: str) -> None:
        """Store the calls of an answer, replacing any earlier ones."""
        self._calls.put(answer, tuple(calls), owner, sum(map(_size, calls)))

    def find(self, answer: bytes) -> tuple[Called, ...]:
        """Return the calls that precede an answer."""
        return self._calls.get(answer) or ()


def _size(called: Called) -> int:
    call, output = called
    text = sum(len(part.text) for part in output.parts if isinstance(part, Text))
    return len(call.arguments) + text + 200
