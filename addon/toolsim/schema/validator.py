"""A compiled schema: checks values within a time budget, and reports the types that it allows.

The cost of a check is measured with the CPU clock of its thread, so that a busy machine does not use up the budget. But
that clock includes delays that a check cannot avoid: a garbage collection of the entire process (100 ms with a million
objects), page faults, or CPU time taken by another virtual machine. These delays alone could make the check of a
three-line schema exceed its budget, and a strict tool's call would be refused. A check therefore reads the clock before
each keyword, and at every sixteenth member of a value. No legitimate step between two readings takes as long as
``STEP_SECONDS``; any excess is a pause and is not counted.
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
"""Budget of one check when no other work is waiting, in seconds. A typical check takes 0.1 ms plus 1 µs per value."""

PATTERN_SHARE = 1 / 3
"""Share of the budget available to all pattern searches of a check; a typical search takes microseconds."""

STEP_SECONDS = 0.003
"""Maximum time counted for one step, in seconds. The longest legitimate step quotes a value of 200 kB in an error."""

_MEMBERS = 16
"""Number of members per clock reading. A reading takes 0.3 µs, as long as all other work for a small member."""


class OutOfTime(Exception):
    """Raised when a check has used up its budget."""


class Budget:
    """The budget of one check, ``seconds`` in total; its clock starts on creation.

    ``spent``: seconds used so far. ``patterns``: seconds left for pattern searches. ``guessed``: whether part of the
    check was abandoned, and counts as a match.
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
        """End the current step and count its time; raise OutOfTime if the budget is used up."""
        self.count_step()
        if self.spent >= self._seconds:
            raise OutOfTime

    def check_member(self) -> None:
        """Check the clock before a member of a value, but only once every few members."""
        self._members += 1
        if self._members % _MEMBERS == 0:
            self.check()

    def count_step(self) -> None:
        """End the current step and count its time."""
        now = thread_time()
        self.spent += min(now - self._read_at, STEP_SECONDS)
        self._read_at = now

    def count_search(self, limit: float) -> None:
        """End the current search, whose timeout was ``limit`` seconds, and count its time."""
        now = thread_time()
        seconds = min(now - self._read_at, limit)
        self.spent += seconds
        self.patterns -= seconds
        self._read_at = now


running: ContextVar[Budget] = ContextVar("budget")
"""The budget of the check in progress."""

_MAX_ERRORS_WEIGHED = 16
"""Maximum number of errors that are compared to choose the most relevant error. A long array of invalid items has one
error per item.
"""

_COMBINATORS = ("allOf", "anyOf", "oneOf")

_UNSURE_BELOW = frozenset(
    {"not", "oneOf", "then", "else", "contains", "unevaluatedItems", "unevaluatedProperties", "dependentSchemas"}
)
"""Keywords under which an assumed match can cause an error. Such errors are ignored after an abandoned search."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check."""

    mismatch: str | None
    """The message about the first mismatch, or None if there is no known mismatch."""
    settled: bool = True
    """Whether every part of the check could be decided."""
    outline: str = ""
    """The message about the mismatch for logs, without quoted values."""
    seconds: float = field(default=0.0, compare=False)
    """The cost of the check, in seconds."""


class Validator:
    """A compiled schema. ``property``, ``items`` and ``types`` are for call forms with untyped values, such as XML.

    ``make`` returns jsonschema's validator. It is called on demand, because most tools of a catalog are never called.
    ``atoms``: the size of the schema's patterns, which determines their compilation time.
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
        """Return the location of and reason for a mismatch, or None if ``value`` conforms or the check was
        undecided.
        """
        return self.examine(value).mismatch

    def examine(self, value: Any, seconds: float = CHECK_SECONDS) -> CheckResult:
        """Check ``value`` (as returned by ``json.loads``) for at most about ``seconds``; never raises."""
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
        """Return the schema of an object's property, or None if the schema does not mention it."""
        return next(iter(self.properties(name)), None)

    def properties(self, name: str) -> list[Validator]:
        """Return the schemas of a property in all alternatives; [] if the schema does not mention the property."""
        found = [
            Validator(partial(self._validator.evolve, schema=schema["properties"][name]))
            for schema in self._alternatives()
            if name in schema.get("properties", ())
        ]
        others = None if found else self._below("additionalProperties")
        return found if others is None else [others]

    def takes_unnamed(self) -> bool:
        """Return whether an object schema explicitly accepts properties that it does not name."""
        others = ("patternProperties", "additionalProperties", "unevaluatedProperties")
        return any(schema.get(keyword) for schema in self._alternatives() for keyword in others)

    def items(self) -> Validator | None:
        """Return the schema of an array's items, or None if the schema does not mention them."""
        return self._below("items")

    def _below(self, keyword: str) -> Validator | None:
        """Return the schema under a keyword, or None if the keyword is missing."""
        for schema in self._alternatives():
            if isinstance(schema.get(keyword), dict):
                return Validator(partial(self._validator.evolve, schema=schema[keyword]))
        return None

    def types(self) -> frozenset[str]:
        """Return the type names at the top level of all the schema's alternatives; empty if any type is allowed."""
        found: set[str] = set()
        for schema in self._alternatives():
            named = schema.get("type", ())
            found.update([named] if isinstance(named, str) else [name for name in named if isinstance(name, str)])
        return frozenset(found)

    def _alternatives(self) -> list[dict[str, Any]]:
        """Return this schema, followed by a limited number of the schemas that it refers to or combines."""
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
                    # The reference is relative to a nested $id, and only ``compile_schema`` can follow such references.
                    continue
            for keyword in _COMBINATORS:
                pending.extend(schema.get(keyword, ()))
        return found
