"""The time that one check may take, known to every keyword that runs in it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

CHECK_SECONDS = 0.5
"""How long one check may take where nobody waits for it. A sane one takes a tenth of a millisecond, and 1 µs for each
value."""

PATTERN_SHARE = 1 / 3
"""How much of it all pattern searches of one check may take together; a sane one takes microseconds."""


@dataclass(slots=True)
class Budget:
    """``deadline``: in CPU time of this thread, so that a busy machine does not spend the budget. ``patterns``: seconds
    left for searches. ``guessed``: one was given up."""

    deadline: float
    patterns: float
    guessed: bool = False


class OutOfTime(Exception):
    """The check's budget is spent."""


budget: ContextVar[Budget] = ContextVar("budget")
"""The budget of the check that is running."""
