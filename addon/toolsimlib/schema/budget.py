"""The time that one check may take, known to every keyword that runs in it.

What a check costs is read from the CPU clock of its thread: a busy machine does not spend it. But that clock counts
what no check can help: a garbage collection of the whole process (100 ms where there are a million objects), the
kernel's work for a page, a processor that was lent to another machine. A schema of three lines would be given up for
it, and a strict tool's call refused. So a check looks at the clock before each keyword, and at each sixteenth member
of a value. No honest step between two looks takes as long as ``STEP_SECONDS``: what is above that was a pause, and is
not counted.
"""

from __future__ import annotations

from contextvars import ContextVar
from time import thread_time

CHECK_SECONDS = 0.5
"""How long one check may take where nobody waits for it. A sane one takes a tenth of a millisecond, and 1 µs for each
value."""

PATTERN_SHARE = 1 / 3
"""How much of it all pattern searches of one check may take together; a sane one takes microseconds."""

STEP_SECONDS = 0.003
"""The most that one step counts for: to quote a value of 200 kB in an error is the longest."""

_MEMBERS = 16
"""A look takes 0.3 µs, as long as the rest of the work for a small member."""


class OutOfTime(Exception):
    """The check's budget is spent."""


class Budget:
    """What one check may take, ``seconds`` in all; it begins now.

    ``spent``: seconds so far. ``patterns``: seconds left for searches. ``guessed``: something was given up.
    """

    __slots__ = ("_looked_at", "_members", "_seconds", "guessed", "patterns", "spent")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.spent = 0.0
        self.patterns = seconds * PATTERN_SHARE
        self.guessed = False
        self._members = 0
        self._looked_at = thread_time()

    def look(self) -> None:
        """Count the step that ends here; raise OutOfTime when the budget is spent."""
        self.count()
        if self.spent >= self._seconds:
            raise OutOfTime

    def member(self) -> None:
        """Look at the clock before one member of a value, unless that was a few members ago."""
        self._members += 1
        if self._members % _MEMBERS == 0:
            self.look()

    def count(self) -> None:
        """Count the step that ends here."""
        now = thread_time()
        self.spent += min(now - self._looked_at, STEP_SECONDS)
        self._looked_at = now

    def count_search(self, limit: float) -> None:
        """Count the search that ends here, which was given ``limit`` seconds."""
        now = thread_time()
        seconds = min(now - self._looked_at, limit)
        self.spent += seconds
        self.patterns -= seconds
        self._looked_at = now


budget: ContextVar[Budget] = ContextVar("budget")
"""The budget of the check that is running."""
