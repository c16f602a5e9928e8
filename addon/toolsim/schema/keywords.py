"""Replacements for some of jsonschema's keywords.

Some of jsonschema's implementations search for a pattern without a time limit, compare all pairs of items, or divide
floats. Others visit the members of a value one by one without checking the clock. The replacements check the clock,
because a value can have many members.

Each public function implements the keyword of the same name in camel case, and yields the errors that it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import cache, partial
from itertools import islice
from math import isfinite
from typing import Any

from jsonschema import exceptions as jsonschema_exceptions
from jsonschema.validators import extend

from toolsim.schema.patterns import matches
from toolsim.schema.validator import running

_Keyword = Callable[..., Iterator[Any]]

_MAX_UNEVALUATED = 128
"""Maximum number of members in a value that ``unevaluatedItems`` and ``unevaluatedProperties`` can check. The check of
a larger value is not completed, because jsonschema compares all members with each other (a minute for 200 kB).
"""


def _checking_deadline[Member](members: Iterable[Member]) -> Iterator[Member]:
    """Yield the members of a value. The clock is checked every few members, and OutOfTime is raised if the budget is
    used up.
    """
    check = running.get().check_member
    for member in members:
        check()
        yield member


def pattern(validator: Any, searched: str, instance: Any, schema: Any) -> Iterator[Any]:
    """Check whether a string matches a pattern. If the search takes too long, the string counts as matching."""
    if validator.is_type(instance, "string") and matches(searched, instance) is False:
        yield jsonschema_exceptions.ValidationError(f"{instance!r} does not match {searched!r}")


def pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    """Check the members whose keys match a pattern. If a search takes too long, the member is accepted."""
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for key, value in _checking_deadline(instance.items()):
                if matches(pattern, key):
                    yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def additional_properties(validator: Any, additional: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Check the properties that the schema neither names nor matches with a pattern.

    If the search for a pattern takes too long, the key counts as matching, so the property is accepted.
    """
    if not validator.is_type(instance, "object"):
        return
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in _checking_deadline(instance.items()):
        if key in properties or any(matches(pattern, key) is not False for pattern in patterns):
            continue
        if additional is False:
            yield jsonschema_exceptions.ValidationError(
                f"Additional properties are not allowed ({key!r} was unexpected)"
            )
        else:
            yield from validator.descend(value, additional, path=key)


def unique_items(validator: Any, unique: bool, instance: Any, schema: Any) -> Iterator[Any]:
    """Check that all items are different. They are compared by hash, because comparing all pairs takes half a minute
    for 4,000 items.
    """
    if unique and validator.is_type(instance, "array") and len(set(_hashable(instance)[1])) < len(instance):
        yield jsonschema_exceptions.ValidationError(f"{instance!r} has non-unique elements")


def _hashable(value: Any) -> Any:
    """Return a hashable key that is the same for equal JSON values. For example, 1 equals 1.0, but not ``True``."""
    match value:
        case bool():
            return (bool, value)
        case list():
            return (list, tuple(_hashable(item) for item in _checking_deadline(value)))
        case dict():
            return (dict, frozenset((key, _hashable(member)) for key, member in _checking_deadline(value.items())))
    return value


def multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Check a number with decimal arithmetic. As decimals, 19.99 is a multiple of 0.01; as floats, it is not."""
    if not validator.is_type(instance, "number") or (isinstance(instance, float) and not isfinite(instance)):
        return
    if Fraction(repr(instance)) % Fraction(repr(divisor)):
        yield jsonschema_exceptions.ValidationError(f"{instance!r} is not a multiple of {divisor}")


def property_names(validator: Any, subschema: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Check the names of an object's properties. The clock is checked every few names."""
    if validator.is_type(instance, "object"):
        for name in _checking_deadline(instance):
            yield from validator.descend(name, subschema)


def _items(plain: _Keyword) -> _Keyword:
    def items(validator: Any, subschema: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if subschema is True or not validator.is_type(instance, "array"):
            return
        if not isinstance(subschema, dict):
            yield from plain(validator, subschema, instance, schema) or ()
            return
        # For a long array, one validator for all items is ten times as fast as one validator for each item.
        if "$id" in subschema or "id" in subschema:
            errors = partial(validator.descend, schema=subschema)
        else:
            errors = validator.evolve(schema=subschema).iter_errors
        start = len(schema.get("prefixItems", ())) if "prefixItems" in validator.VALIDATORS else 0
        for index, item in _checking_deadline(islice(enumerate(instance), start, None)):
            for error in errors(item):
                error.path.appendleft(index)
                yield error

    return items


def _additional_items(plain: _Keyword) -> _Keyword:
    def additional_items(validator: Any, subschema: Any, instance: Any, schema: Any) -> Iterator[Any]:
        declared = schema.get("items")
        if not (isinstance(subschema, dict) and isinstance(declared, list) and validator.is_type(instance, "array")):
            yield from plain(validator, subschema, instance, schema) or ()
            return
        for index, item in _checking_deadline(islice(enumerate(instance), len(declared), None)):
            yield from validator.descend(item, subschema, path=index)

    return additional_items


def _contains(plain: _Keyword) -> _Keyword:
    def contains(validator: Any, subschema: Any, instance: Any, schema: Any) -> Iterator[Any]:
        clocked = _ClockedItems(instance) if validator.is_type(instance, "array") else instance
        yield from plain(validator, subschema, clocked, schema) or ()

    return contains


def _unevaluated(plain: _Keyword) -> _Keyword:
    def unevaluated(validator: Any, subschema: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, list | dict) and len(instance) > _MAX_UNEVALUATED:
            running.get().guessed = True
        else:
            yield from plain(validator, subschema, instance, schema) or ()

    return unevaluated


class _ClockedItems(list[Any]):
    """An array that checks the clock while jsonschema iterates over it."""

    def __iter__(self) -> Iterator[Any]:
        return _checking_deadline(super().__iter__())


_KEYWORDS: dict[str, _Keyword] = {
    "pattern": pattern,
    "patternProperties": pattern_properties,
    "additionalProperties": additional_properties,
    "uniqueItems": unique_items,
    "multipleOf": multiple_of,
    "propertyNames": property_names,
}

_WRAPPED: dict[str, Callable[[_Keyword], _Keyword]] = {
    "items": _items,
    "additionalItems": _additional_items,
    "contains": _contains,
    "unevaluatedItems": _unevaluated,
    "unevaluatedProperties": _unevaluated,
}


@cache
def with_deadline_checks(base: Any) -> Any:
    """Return a validator class that uses this module's keywords, and checks the clock before each keyword. ``base``:
    jsonschema's validator class for the dialect.
    """
    keywords = dict(base.VALIDATORS)
    keywords.update({name: keyword for name, keyword in _KEYWORDS.items() if name in keywords})
    keywords.update({name: wrap(keywords[name]) for name, wrap in _WRAPPED.items() if name in keywords})
    timed = {name: _timed(keyword) for name, keyword in keywords.items()}
    return extend(base, timed)  # type: ignore[no-untyped-call]


def _timed(keyword: Callable[..., Any]) -> Callable[..., Any]:
    def timed(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        running.get().check()
        return keyword(validator, value, instance, schema)

    return timed
