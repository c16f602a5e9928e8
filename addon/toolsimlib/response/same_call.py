"""A model in a loop: it writes the same call again and again, until something ends its answer.

    [{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}, {"na

Weak models fall into it in lists, and a server that is told no limit goes on until its context is full. The repeats are
no plan: of a list that is in a loop the call counts once, behind those before it. It is in a loop

1. where the backend's limit cuts it off in the midst of an item that begins like those before it, ``CUT`` of them or
   more being the same;
2. where ``ENDLESS`` items in a row are the same: it is over there, whatever would follow.

A list that ends by itself stands as it is: two throws of a die are two calls. Items are compared as they are written;
a loop repeats them to the letter. Calls in tags of their own are told as they come, and no affair of this room: their
number has options (``tool_block_max``, ``tool_block_dedup``).
"""

from __future__ import annotations

CUT = 3
"""As many calls of one answer may be the same by chance, or because they are meant."""

ENDLESS = 32
"""More of the same call than anyone means."""

REPEATED_CALL = "REPEATED_CALL"
ONE_CALL = "the same call again and again"
"""The repair, and why the answer is ended."""

_BETWEEN = "[, \t\r\n"


class SameCall:
    """The items of a list so far. ``times``: how often the last one stands at its end; ``first_end``: of the first."""

    def __init__(self) -> None:
        self._item = ""
        self.times = self.first_end = 0

    def take(self, item: str, end: int) -> None:
        """Take the next item, which ends at ``end`` of the text; what stands between it and the last is skipped."""
        item = item.lstrip(_BETWEEN)
        if item == self._item:
            self.times += 1
        else:
            self._item, self.times, self.first_end = item, 1, end

    @property
    def is_endless(self) -> bool:
        """Whether the list is over, by rule 2."""
        return self.times >= ENDLESS

    def is_cut(self, rest: str) -> bool:
        """Return whether the list is in a loop, by rule 1; ``rest`` is what was written behind its last whole item."""
        return self.times >= CUT and self._item.startswith(rest.lstrip(_BETWEEN))
