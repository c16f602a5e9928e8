"""A compiled schema: checks values within a time budget, and reports the types that it allows.

The time of a check is measured with the CPU clock of its thread, so that other programs on a busy machine do not use up
the budget. However, this clock includes delays for which the check is not responsible: a garbage collection of the
entire process (100 ms with a million objects), page faults, or CPU time taken by another virtual machine. These delays
alone could exceed the budget, even for a three-line schema, and a call to a strict tool would then be refused.
Therefore, a check reads the clock before each keyword, and at every sixteenth member of a value. Without such delays,
the time between two readings is always less than ``STEP_SECONDS``. If it is longer, only ``STEP_SECONDS`` are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from time import thread_time
from typing import Any

from toolsim.schema.errors import best, message, outline

CHECK_SECONDS = 0.5
"""Time budget for one check when no other work is waiting, in seconds. A typical check takes 0.1 ms plus 1 µs per
value.
"""

PATTERN_SHARE = 1 / 3
"""Fraction of a check's budget that all pattern searches together can use. A typical search takes microseconds."""

STEP_SECONDS = 0.003
"""Maximum time counted between two readings of the clock, in seconds. Any longer time is caused by a
delay outside the check.
"""

_MEMBERS = 16
"""Number of members after which the clock is read again. Reading the clock takes 0.3 µs, as long as checking a small
member.
"""


class OutOfTime(Exception):
    """Raised when a check has used up its budget."""


class Budget:
    """The time budget of one check. The clock starts when the object is created.

    ``seconds``: the total budget. ``spent``: the time used so far, in seconds. ``patterns``: the time left for pattern
    searches, in seconds. ``guessed``: whether a part of the check was abandoned and counted as a match.
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
        """Count the time since the last reading of the clock. Raises OutOfTime if the budget is used up."""
        self.count_step()
        if self.spent >= self._seconds:
            raise OutOfTime

    def check_member(self) -> None:
        """Call ``check`` at every sixteenth member of a value."""
        self._members += 1
        if self._members % _MEMBERS == 0:
            self.check()

    def count_step(self) -> None:
        """Count the time since the last reading of the clock."""
        now = thread_time()
        self.spent += min(now - self._read_at, STEP_SECONDS)
        self._read_at = now

    def count_search(self, limit: float) -> None:
        """Count the time of a pattern search since the last reading of the clock. ``limit``: the timeout of the search,
        in seconds.
        """
        now = thread_time()
        seconds = min(now - self._read_at, limit)
        self.spent += seconds
        self.patterns -= seconds
        self._read_at = now


running: ContextVar[Budget] = ContextVar("budget")
"""The budget of the check that is currently running."""

_MAX_ERRORS_WEIGHED = 16
"""Maximum number of errors that are compared to choose the most relevant one. An array of invalid items has one error
for each item.
"""

_COMBINATORS = ("allOf", "anyOf", "oneOf")

_UNSURE_BELOW = frozenset(
    {"not", "oneOf", "then", "else", "contains", "unevaluatedItems", "unevaluatedProperties", "dependentSchemas"}
)
"""Keywords under which a false match can cause an error. If a pattern search was abandoned, and therefore counted as a
match, such errors are ignored.
"""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check."""

    mismatch: str | None
    """The message about the mismatch, or None if no mismatch was found."""
    settled: bool = True
    """Whether all parts of the check were completed."""
    outline: str = ""
    """The message about the mismatch for logs, or "" if no mismatch was found. It does not quote the value."""
    seconds: float = field(default=0.0, compare=False)
    """The time that the check took, in seconds."""


class Validator:
    """A compiled schema. ``check`` and ``examine`` check values. The other methods describe the schema, for values
    without types, such as XML elements.

    ``make``: a function that returns jsonschema's validator, called on demand, because most tools are never called.
    ``atoms``: the size of the schema's patterns, which determines the time to compile them.
    """

    __slots__ = ("_made", "_make", "atoms")

    def __init__(self, make: Callable[[], Any], atoms: int = 0) -> None:
        self._make = make
        self.atoms = atoms
        self._made: Any = None

    @property
    def _validator(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made

    def check(self, value: Any) -> str | None:
        """Return the message about a mismatch, or None if ``value`` conforms or the check could not be completed."""
        return self.examine(value).mismatch

    def examine(self, value: Any, seconds: float = CHECK_SECONDS) -> CheckResult:
        """Check ``value``, which is the result of ``json.loads``, within about ``seconds``. This method never raises
        exceptions.
        """
        budget = Budget(seconds)
        token = running.set(budget)
        errors: list[Any] = []
        settled = True
        try:
            for error in islice(self._validator.iter_errors(value), _MAX_ERRORS_WEIGHED):
                if not (budget.guessed and _UNSURE_BELOW.intersection(error.absolute_schema_path)):
                    errors.append(error)  # noqa: PERF401 (those found before it breaks count)
        except Exception:  # An exception does not show that the value is invalid.
            settled = False
        finally:
            running.reset(token)
        settled = settled and not budget.guessed
        worst = best(errors) if errors else None
        budget.count_step()
        if worst is None:
            return CheckResult(None, settled, seconds=budget.spent)
        return CheckResult(message(worst), settled, outline(worst), budget.spent)

    def property(self, name: str) -> Validator | None:
        """Return the schema of an object's property, or None if the schema does not declare the property."""
        return next(iter(self.properties(name)), None)

    def properties(self, name: str) -> list[Validator]:
        """Return the schemas that a property has in the alternatives of the schema (``anyOf``, ``$ref``). Returns [] if
        it has none.
        """
        found = [
            Validator(partial(self._validator.evolve, schema=schema["properties"][name]))
            for schema in self._alternatives()
            if name in schema.get("properties", ())
        ]
        others = None if found else self._below("additionalProperties")
        return found if others is None else [others]

    def takes_unnamed(self) -> bool:
        """Return whether the schema explicitly allows properties that it does not name."""
        others = ("patternProperties", "additionalProperties", "unevaluatedProperties")
        return any(schema.get(keyword) for schema in self._alternatives() for keyword in others)

    def items(self) -> Validator | None:
        """Return the schema of an array's items, or None if the schema does not declare one."""
        return self._below("items")

    def _below(self, keyword: str) -> Validator | None:
        """Return the first schema that this schema or its alternatives have under a keyword, or None if none exists."""
        for schema in self._alternatives():
            if isinstance(schema.get(keyword), dict):
                return Validator(partial(self._validator.evolve, schema=schema[keyword]))
        return None

    def types(self) -> frozenset[str]:
        """Return the types that the schema and its alternatives list at the top level. The result is empty if they list
        none.
        """
        found: set[str] = set()
        for schema in self._alternatives():
            named = schema.get("type", ())
            found.update([named] if isinstance(named, str) else [name for name in named if isinstance(name, str)])
        return frozenset(found)

    def _alternatives(self) -> list[dict[str, Any]]:
        """Return this schema, and up to 31 schemas that it refers to or combines (``$ref``, ``anyOf``)."""
        from referencing.exceptions import Unresolvable  # Imported on demand; see ``compile``.

        found: list[dict[str, Any]] = []
        pending = [self._validator.schema]
        resolver = self._validator._resolver
        while pending and len(found) < 32:
            schema = pending.pop(0)
            if not isinstance(schema, dict) or any(schema is other for other in found):
                continue
            found.append(schema)
            if isinstance(schema.get("$ref"), str):
                try:
                    pending.append(resolver.lookup(schema["$ref"]).contents)
                except Unresolvable:
                    # The reference is relative to the $id of a subschema. Only ``compile_schema`` can resolve such
                    # references.
                    continue
            for keyword in _COMBINATORS:
                pending.extend(schema.get(keyword, ()))
        return found
