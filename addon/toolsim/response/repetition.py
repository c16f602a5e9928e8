"""Detects a model in a loop that repeats the same call until its answer is cut off.

    [{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}, {"na

Weak models repeat calls in lists, and a server without a limit continues until the context is full. The repetitions are
not intended, so the call that a loop repeats counts only once, after the calls before it. A list is a loop

1. if the backend's limit cuts it off in the middle of an item that begins like the previous items, of which at least
   ``CUT`` are equal; or
2. if ``ENDLESS`` consecutive items are equal. The list then ends there.

A list that ends normally is unchanged, because two rolls of a die are two calls. Items are compared as text, since a
loop repeats them verbatim. Tagged calls are emitted as they arrive, so they are not handled here; options limit their
number (``tool_block_max``, ``tool_block_dedup``).
"""

from __future__ import annotations

CUT = 3
"""Minimum number of equal calls in a loop that was cut off. This many calls could be coincidental or intended; only the
cut shows that they are a loop.
"""

ENDLESS = 32
"""Number of equal calls that proves a loop. No model intends that many."""

REPEATED_CALL = "REPEATED_CALL"
ONE_CALL = "the same call again and again"
"""The reason given for ending the answer. The code of the repair is ``REPEATED_CALL``."""

_BETWEEN = "[, \t\r\n"


class RepetitionDetector:
    """Detects a repetition among the items of a list.

    ``times``: how many times in a row the last item has occurred. ``first_end``: the end of the first of these
    occurrences.
    """

    def __init__(self) -> None:
        self._item = ""
        self.times = self.first_end = 0

    def take(self, item: str, end: int) -> None:
        """Process the next item. It ends at ``end`` in the text; separators before it are skipped."""
        item = item.lstrip(_BETWEEN)
        if item == self._item:
            self.times += 1
        else:
            self._item = item
            self.times = 1
            self.first_end = end

    @property
    def is_endless(self) -> bool:
        """Whether the list has ended under rule 2."""
        return self.times >= ENDLESS

    def is_cut(self, rest: str) -> bool:
        """Return whether the list is in a loop under rule 1; ``rest`` is the text after its last complete item."""
        return self.times >= CUT and self._item.startswith(rest.lstrip(_BETWEEN))
