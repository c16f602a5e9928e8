"""The calls that a client was not shown, for its next requests.

A chat message has no place for calls of tools that the client does not run: the client gets only the words, and sends
only these back. The model would not know what it had found out. So the calls of an answer are kept here, and inserted
before that answer when its conversation continues.

An answer is identified by all messages before it, its owner, the servers that they named, and its own words and calls:
a client that can show the same under the same key has received that very answer. The number of answers and their bytes
are bounded; the least recently used go first, and the model can find out again what was lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from toolsimlib.conversation import Called, Text

MAX_ANSWERS = 1_000
MAX_BYTES = 16 * 1024 * 1024


class Hidden:
    """Calls with their outputs, by the answer that they led to."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, tuple[tuple[Called, ...], int]] = OrderedDict()
        self._size = 0

    def keep(self, answer: bytes, calls: Sequence[Called]) -> None:
        """Keep the calls of an answer, in place of those that were kept before."""
        self._forget(answer)
        size = sum(map(_size, calls))
        self._kept[answer] = tuple(calls), size
        self._size += size
        while len(self._kept) > MAX_ANSWERS or self._size > MAX_BYTES:
            self._forget(next(iter(self._kept)))

    def find(self, answer: bytes) -> tuple[Called, ...]:
        """Return the calls that precede an answer."""
        if answer not in self._kept:
            return ()
        self._kept.move_to_end(answer)
        return self._kept[answer][0]

    def _forget(self, answer: bytes) -> None:
        _, size = self._kept.pop(answer, ((), 0))
        self._size -= size


def _size(called: Called) -> int:
    call, output = called
    text = sum(len(part.text) for part in output.parts if isinstance(part, Text))
    return len(call.arguments) + text + 200
