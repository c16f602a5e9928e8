"""Stores calls that a client was not shown, so that toolsim can add them to the client's next requests.

A chat message has no field for calls to tools that the client does not run. The client receives only the text, and
sends only the text back, so the model would not know the results. Therefore, the calls of an answer are stored here,
and inserted before that answer when the conversation continues.

An answer is identified by its owner, all messages before it, the MCP servers that the request names, and its own text
and calls. A client that sends all of this with the same API key must have received the answer. The number and size of
stored answers are bounded (``FairCache``). If the results of an answer are lost, the model can call the tools again.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolsim.core.conversation import Called, Text
from toolsim.core.fair_cache import FairCache

MAX_ANSWERS = 1_000
MAX_BYTES = 16 * 1024 * 1024


class HiddenCalls:
    """Stores calls with their outputs, keyed by the answer that the client received after the calls."""

    def __init__(self) -> None:
        self._calls: FairCache[tuple[Called, ...]] = FairCache(MAX_ANSWERS, MAX_BYTES)

    def put(self, answer: bytes, calls: Sequence[Called], owner: str) -> None:
        """Store the calls of an answer, replacing any calls that were stored for it earlier."""
        self._calls.put(answer, tuple(calls), owner, sum(map(_size, calls)))

    def find(self, answer: bytes) -> tuple[Called, ...]:
        """Return the calls that precede an answer, or an empty tuple if there are none."""
        return self._calls.get(answer) or ()


def _size(called: Called) -> int:
    call, output = called
    text = sum(len(part.text) for part in output.parts if isinstance(part, Text))
    return len(call.arguments) + text + 200
