"""Keywords that replace jsonschema's: those that search a pattern without a limit, compare all pairs, or divide floats.

Each function is one keyword of the specification, by its name in snake case; it yields the errors that it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from math import isfinite
from time import thread_time
from typing import Any

from jsonschema import exceptions as jsonschema_exceptions
from jsonschema.validators import extend

from toolsimlib.schema.budget import OutOfTime, budget
from toolsimlib.schema.patterns import matches


def pattern(validator: Any, searched: str, instance: Any, schema: Any) -> Iterator[Any]:
    """Search within the check's budget; a search that is given up counts as a match."""
    if validator.is_type(instance, "string") and matches(searched, instance) is False:
        yield jsonschema_exceptions.ValidationError(f"{instance!r} does not match {searched!r}")


def pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    """Search within the check's budget; a key whose search is given up is let through."""
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for key, value in instance.items():
                if matches(pattern, key):
                    yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def additional_properties(validator: Any, additional: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Search the neighbouring ``patternProperties`` within the budget: a key that may match one is not additional."""
    if not validator.is_type(instance, "object"):
        return
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in instance.items():
        if key in properties or any(matches(pattern, key) is not False for pattern in patterns):
            continue
        if additional is False:
            yield jsonschema_exceptions.ValidationError(
                f"Additional properties are not allowed ({key!r} was unexpected)"
            )
        else:
            yield from validator.descend(value, additional, path=key)


def unique_items(validator: Any, unique: bool, instance: Any, schema: Any) -> Iterator[Any]:
    """Compare by hash instead of all pairs, which takes half a minute on 4,000 items."""
    if unique and validator.is_type(instance, "array") and len({_hashable(each) for each in instance}) < len(instance):
        yield jsonschema_exceptions.ValidationError(f"{instance!r} has non-unique elements")


def _hashable(value: Any) -> Any:
    """Return a key that is equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    match value:
        case bool():
            return (bool, value)
        case list():
            return (list, tuple(_hashable(each) for each in value))
        case dict():
            return (dict, frozenset((key, _hashable(each)) for key, each in value.items()))
    return value


def multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Divide the decimal texts: 19.99 is a multiple of 0.01, though not as a float."""
    if not validator.is_type(instance, "number") or (isinstance(instance, float) and not isfinite(instance)):
        return
    if Fraction(repr(instance)) % Fraction(repr(divisor)):
        yield jsonschema_exceptions.ValidationError(f"{instance!r} is not a multiple of {divisor}")


def _items_faster(plain: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    def items(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[Any]:
        plainly = not isinstance(items, dict) or "prefixItems" in schema or "$id" in items or "id" in items
        if plainly or not validator.is_type(instance, "array"):
            yield from plain(validator, items, instance, schema) or ()
            return
        # One validator for all items instead of one for each: ten times as fast on a long array.
        each = validator.evolve(schema=items)
        for index, item in enumerate(instance):
            for error in each.iter_errors(item):
                error.path.appendleft(index)
                yield error

    return items


_KEYWORDS: dict[str, Callable[..., Iterator[Any]]] = {
    "pattern": pattern,
    "patternProperties": pattern_properties,
    "additionalProperties": additional_properties,
    "uniqueItems": unique_items,
    "multipleOf": multiple_of,
}


@cache
def fenced(base: Any) -> Any:
    """Return a dialect's validator class with our keywords, and a look at the clock before each keyword."""
    keywords = dict(base.VALIDATORS)
    keywords.update({name: keyword for name, keyword in _KEYWORDS.items() if name in keywords})
    keywords["items"] = _items_faster(keywords["items"])
    timed = {name: _timed(keyword) for name, keyword in keywords.items()}
    return extend(base, timed)  # type: ignore[no-untyped-call]


def _timed(keyword: Callable[..., Any]) -> Callable[..., Any]:
    def timed(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if thread_time() > budget.get().deadline:
            raise OutOfTime
        return keyword(validator, value, instance, schema)

    return timed
