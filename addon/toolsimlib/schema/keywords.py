"""Keywords that replace jsonschema's: some search a pattern without a limit, compare all pairs, or divide floats.

The clock is checked before each keyword, and before each member of a value: there may be many, whose schema has none.
jsonschema evolves a validator for each of them; where nothing is evolved (``_clocked``), the keyword is replaced too.

Each function is one keyword of the specification, by its name in snake case; it yields the errors that it finds.
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

from toolsimlib.schema.patterns import matches
from toolsimlib.schema.validator import running

_Keyword = Callable[..., Iterator[Any]]

_MAX_UNEVALUATED = 128
"""Members of a value for which jsonschema may determine which were evaluated: it compares all pairs in one go, which
takes a minute for an array of 200 kB. For a larger value that counts as unsettled."""


def _clocked[Member](members: Iterable[Member]) -> Iterator[Member]:
    """Yield the members of a value, checking the clock now and then."""
    check = running.get().check_member
    for member in members:
        check()
        yield member


def pattern(validator: Any, searched: str, instance: Any, schema: Any) -> Iterator[Any]:
    """Search within the check's budget; a search that is given up counts as a match."""
    if validator.is_type(instance, "string") and matches(searched, instance) is False:
        yield jsonschema_exceptions.ValidationError(f"{instance!r} does not match {searched!r}")


def pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    """Search within the check's budget; a key whose search is given up is let through."""
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for key, value in _clocked(instance.items()):
                if matches(pattern, key):
                    yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def additional_properties(validator: Any, additional: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Search the neighbouring ``patternProperties`` within the budget: a key that may match one is not additional."""
    if not validator.is_type(instance, "object"):
        return
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in _clocked(instance.items()):
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
    if unique and validator.is_type(instance, "array") and len(set(_hashable(instance)[1])) < len(instance):
        yield jsonschema_exceptions.ValidationError(f"{instance!r} has non-unique elements")


def _hashable(value: Any) -> Any:
    """Return a key that is equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    match value:
        case bool():
            return (bool, value)
        case list():
            return (list, tuple(_hashable(item) for item in _clocked(value)))
        case dict():
            return (dict, frozenset((key, _hashable(member)) for key, member in _clocked(value.items())))
    return value


def multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Divide the decimal texts: 19.99 is a multiple of 0.01, though not as a float."""
    if not validator.is_type(instance, "number") or (isinstance(instance, float) and not isfinite(instance)):
        return
    if Fraction(repr(instance)) % Fraction(repr(divisor)):
        yield jsonschema_exceptions.ValidationError(f"{instance!r} is not a multiple of {divisor}")


def _items(plain: _Keyword) -> _Keyword:
    def items(validator: Any, subschema: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if subschema is True or not validator.is_type(instance, "array"):
            return
        if not isinstance(subschema, dict):
            yield from plain(validator, subschema, instance, schema) or ()
            return
        # One validator for all items instead of one for each: ten times as fast on a long array.
        if "$id" in subschema or "id" in subschema:
            errors = partial(validator.descend, schema=subschema)
        else:
            errors = validator.evolve(schema=subschema).iter_errors
        start = len(schema.get("prefixItems", ())) if "prefixItems" in validator.VALIDATORS else 0
        for index, item in _clocked(islice(enumerate(instance), start, None)):
            for error in errors(item):
                error.path.appendleft(index)
                yield error

    return items


def _contains(plain: _Keyword) -> _Keyword:
    def contains(validator: Any, subschema: Any, instance: Any, schema: Any) -> Iterator[Any]:
        clocked = _ClockedItems(instance) if validator.is_type(instance, "array") else instance
        yield from plain(validator, subschema, clocked, schema) or ()

    return contains


class _ClockedItems(list[Any]):
    """An array that checks the clock while jsonschema iterates over it."""

    def __iter__(self) -> Iterator[Any]:
        return _clocked(super().__iter__())


def _unevaluated(plain: _Keyword) -> _Keyword:
    def unevaluated(validator: Any, subschema: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, list | dict) and len(instance) > _MAX_UNEVALUATED:
            running.get().guessed = True
        else:
            yield from plain(validator, subschema, instance, schema) or ()

    return unevaluated


_KEYWORDS: dict[str, _Keyword] = {
    "pattern": pattern,
    "patternProperties": pattern_properties,
    "additionalProperties": additional_properties,
    "uniqueItems": unique_items,
    "multipleOf": multiple_of,
}

_WRAPPED: dict[str, Callable[[_Keyword], _Keyword]] = {
    "items": _items,
    "contains": _contains,
    "unevaluatedItems": _unevaluated,
    "unevaluatedProperties": _unevaluated,
}


@cache
def fenced(base: Any) -> Any:
    """Return a dialect's validator class with our keywords, which checks the clock."""
    keywords = dict(base.VALIDATORS)
    keywords.update({name: keyword for name, keyword in _KEYWORDS.items() if name in keywords})
    keywords.update({name: wrap(keywords[name]) for name, wrap in _WRAPPED.items() if name in keywords})
    timed = {name: _timed(keyword) for name, keyword in keywords.items()}
    validator = extend(base, timed)  # type: ignore[no-untyped-call]
    validator.evolve = _clocked_evolve(validator.evolve)
    return validator


def _timed(keyword: Callable[..., Any]) -> Callable[..., Any]:
    def timed(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        running.get().check()
        return keyword(validator, value, instance, schema)

    return timed


def _clocked_evolve(plain: Callable[..., Any]) -> Callable[..., Any]:
    def evolve(validator: Any, **changes: Any) -> Any:
        # Outside of a check, a part of a schema gets a validator of its own.
        if (budget := running.get(None)) is not None:
            budget.check_member()
        return plain(validator, **changes)

    return evolve
