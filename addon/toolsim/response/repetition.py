"""Detects a model in a loop that repeats the same call until its answer is cut off.

    [{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}, {"na

Weak models sometimes repeat a call in a list endlessly, and a server without a limit continues until the context is
full. The repetitions are not intended, so the repeated call counts only once. The calls before it count as usual. A
list is treated as a loop

1. if it contains at least ``CUT`` equal items, and a length limit cuts it off in the middle of another such item; or
2. if ``ENDLESS`` consecutive items are equal. The list then ends there.

A list that ends normally is never changed, because equal calls can be intended. For example, rolling a die twice
requires two equal calls. Items are compared as text, since a loop repeats them verbatim. Tagged calls are emitted as
they arrive, so they are not handled here; options limit their number (``tool_block_max``, ``tool_block_dedup``).
"""

from __future__ import annotations

CUT = 3
"""Minimum number of equal calls that count as a loop if the list was cut off. In a list that ends normally, this many
equal calls can be intended.
"""

ENDLESS = 32
"""Minimum number of equal calls that count as a loop in any list. No model intends to make the same call that often."""

REPEATED_CALL = "REPEATED_CALL"
ONE_CALL = "the same call again and again"
"""The reason in the report for ending an answer at an endlessly repeated call."""

_BETWEEN = "[, \t\r\n"


class RepetitionDetector:
    """Counts equal consecutive items in a list.

    ``times``: how often the last item has occurred in a row. ``first_end``: the end of the first of these occurrences.
    """

    def __init__(self) -> None:
        self._item = ""
        self.times = self.first_end = 0

    def take(self, item: str, end: int) -> None:
        """Process the list's next item, which ends at position ``end``. Separators before the item are skipped."""
        item = item.lstrip(_BETWEEN)
        if item == self._item:
            self.times += 1
        else:
            self._item = item
            self.times = 1
            self.first_end = end

    @property
    def is_endless(self) -> bool:
        """Whether the list repeats the same item endlessly (rule 2)."""
        return self.times >= ENDLESS

    def is_cut(self, rest: str) -> bool:
        """Return whether a truncated list repeats the same item (rule 1).

        ``rest``: the text after the list's last complete item.
        """
        return self.times >= CUT and self._item.startswith(rest.lstrip(_BETWEEN))
