"""The time budget of one check, shared by all keywords that run in it.

The cost of a check is measured on the CPU clock of its thread, so that a busy machine does not spend the budget. But
that clock includes what no check can avoid: a garbage collection of the whole process (100 ms with a million objects),
the kernel's work for a page, a processor lent to another machine. For these alone a schema of three lines would be
given up, and a strict tool's call refused. So a check reads the clock before each keyword, and at every sixteenth
member of a value. No honest step between two readings takes as long as ``STEP_SECONDS``: anything above that was a
pause, and is not counted.
"""

from __future__ import annotations

from contextvars import ContextVar
from time import thread_time

CHECK_SECONDS = 0.5
"""How long one check may take if nobody waits for it. A sane one takes a tenth of a millisecond, and 1 µs per value."""

PATTERN_SHARE = 1 / 3
"""How much of it all pattern searches of one check may take together; a sane one takes microseconds."""

STEP_SECONDS = 0.003
"""The most that one step counts for: quoting a value of 200 kB in an error takes longest."""

_MEMBERS = 16
"""Members per reading of the clock, which takes 0.3 µs: as long as the rest of the work for a small member."""


class OutOfTime(Exception):
    """The check's budget is spent."""


class Budget:
    """The budget of one check, ``seconds`` in all; its clock starts now.

    ``spent``: seconds so far. ``patterns``: seconds left for searches. ``guessed``: something was given up.
    """

    __slots__ = ("_members", "_read_at", "_seconds", "guessed", "patterns", "spent")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.spent = 0.0
        self.patterns = seconds * PATTERN_SHARE
        self.guessed = False
        self._members = 0
        self._read_at = thread_time()

    def check(self) -> None:
        """Count the step that ends here; raise OutOfTime when the budget is spent."""
        self.count_step()
        if self.spent >= self._seconds:
            raise OutOfTime

    def check_member(self) -> None:
        """Check the clock before one member of a value, unless that happened a few members ago."""
        self._members += 1
        if self._members % _MEMBERS == 0:
            self.check()

    def count_step(self) -> None:
        """Count the step that ends here."""
        now = thread_time()
        self.spent += min(now - self._read_at, STEP_SECONDS)
        self._read_at = now

    def count_search(self, limit: float) -> None:
        """Count the search that ends here, whose timeout was ``limit`` seconds."""
        now = thread_time()
        seconds = min(now - self._read_at, limit)
        self.spent += seconds
        self.patterns -= seconds
        self._read_at = now


budget: ContextVar[Budget] = ContextVar("budget")
"""The budget of the check that is running."""
