"""A compiled schema: checks values, and says which types it allows where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from toolsimlib.schema.budget import CHECK_SECONDS, Budget
from toolsimlib.schema.budget import budget as running
from toolsimlib.schema.errors import best, message, outline

_MAX_ERRORS_WEIGHED = 16
"""The most relevant of this many errors is reported; a long array of wrong items has one error for each."""

_COMBINATORS = ("allOf", "anyOf", "oneOf")

_UNSURE_BELOW = frozenset(
    {"not", "oneOf", "then", "else", "contains", "unevaluatedItems", "unevaluatedProperties", "dependentSchemas"}
)
"""Keywords under which the guess "it matches" may cause an error: after a guess such errors are ignored."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    mismatch: str | None
    """The message about the first mismatch, None if there is none."""
    settled: bool = True
    """Whether every part could be decided."""
    outline: str = ""
    """The mismatch for logs, without quoting values."""
    seconds: float = field(default=0.0, compare=False)
    """What the check cost."""


class Validator:
    """One compiled schema. ``property``, ``items`` and ``types`` serve values that come without types, as XML does.

    ``make`` returns jsonschema's validator. Most tools of a catalogue are never called, so it is made on demand.
    ``atoms``: the size of its patterns, which took time to compile.
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
        """Return None when ``value`` conforms (or could not be settled), else where and why it does not."""
        return self.examine(value).mismatch

    def examine(self, value: Any, seconds: float = CHECK_SECONDS) -> Finding:
        """Check ``value`` (as ``json.loads`` returns it) for at most about ``seconds``; never raises."""
        budget = Budget(seconds)
        token = running.set(budget)
        errors: list[Any] = []
        settled = True
        try:
            for error in islice(self._validator.iter_errors(value), _MAX_ERRORS_WEIGHED):
                if not (budget.guessed and _UNSURE_BELOW.intersection(error.absolute_schema_path)):
                    errors.append(error)  # noqa: PERF401 (those found before it breaks count)
        except Exception:  # a client's schema on a model's value: whatever breaks there says nothing about the value
            settled = False
        finally:
            running.reset(token)
        settled = settled and not budget.guessed
        worst = best(errors) if errors else None
        budget.count_step()
        if worst is None:
            return Finding(None, settled, seconds=budget.spent)
        return Finding(message(worst), settled, outline(worst), budget.spent)

    def property(self, name: str) -> Validator | None:
        """Return the schema of one property of an object, None if the schema says nothing about it."""
        declared = [schema["properties"] for schema in self._alternatives() if "properties" in schema]
        for properties in declared:
            if name in properties:
                return Validator(partial(self._validator.evolve, schema=properties[name]))
        for schema in self._alternatives():
            if isinstance(schema.get("additionalProperties"), dict):
                return Validator(partial(self._validator.evolve, schema=schema["additionalProperties"]))
        return None

    def takes_unnamed(self) -> bool:
        """Return whether the schema of an object says that it takes properties without naming them."""
        others = ("patternProperties", "additionalProperties", "unevaluatedProperties")
        return any(schema.get(keyword) for schema in self._alternatives() for keyword in others)

    def items(self) -> Validator | None:
        """Return the schema of an array's items, None if the schema says nothing about them."""
        for schema in self._alternatives():
            if isinstance(schema.get("items"), dict):
                return Validator(partial(self._validator.evolve, schema=schema["items"]))
        return None

    def types(self) -> frozenset[str]:
        """Return the type names that the schema mentions at its top, over all alternatives; empty = any type."""
        found: set[str] = set()
        for schema in self._alternatives():
            named = schema.get("type", ())
            found.update([named] if isinstance(named, str) else [name for name in named if isinstance(name, str)])
        return frozenset(found)

    def _alternatives(self) -> list[dict[str, Any]]:
        """Return this schema and those that it refers to or combines, itself first; a handful is enough."""
        from referencing.exceptions import Unresolvable  # on demand: see ``compile``

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
                except Unresolvable:  # relative to a nested $id, which compile_schema could follow
                    continue
            for keyword in _COMBINATORS:
                pending.extend(schema.get(keyword, ()))
        return found
