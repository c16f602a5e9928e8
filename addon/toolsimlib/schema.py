"""A tool's JSON schema as a judge of arguments: jsonschema, fenced in.

The schema comes from a client and the value from a model, and both are judged on the event loop. So:

1. Nothing is ever fetched: the registry is empty, and every reference is resolved when the schema is compiled.
2. No check takes longer than its budget. A pattern that backtracks without end is given up, and counts as matching.
3. Whatever breaks inside of a check (recursion, overflow) leaves the value unsettled; it never escapes.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import islice
from math import isfinite
from time import monotonic
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema import exceptions as jsonschema_exceptions
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

CHECK_SECONDS = 0.5
"""How long one check may hold up the event loop. A sane schema needs less for the largest arguments allowed."""

PATTERN_SECONDS = 0.1
"""How long all pattern searches of one check may take together; a sane one takes microseconds."""

MESSAGE_LENGTH = 300
"""jsonschema quotes the whole offending value; a client wants to read a line."""

_ERRORS_WEIGHED = 16
"""The most telling of this many errors is reported; a long array of wrong items has one error for each."""

_COMPILED_KEPT = 256
"""Compiled schemas kept: a few clients' whole tool sets. Each costs some ten times its text."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_COMBINATORS = ("allOf", "anyOf", "oneOf")
_VALUES = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords that hold values, not schemas."""

_UNSURE_BELOW = frozenset(
    {"not", "oneOf", "then", "else", "contains", "unevaluatedItems", "unevaluatedProperties", "dependentSchemas"}
)
"""Where a guess "it matches" may turn into an error: such errors are not believed after a guess."""


class SchemaError(Exception):
    """The schema cannot be used; the message says why, in one line for the client."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: ``mismatch`` is None or one message; not ``settled`` = some part could not be decided."""

    mismatch: str | None
    settled: bool = True


@dataclass(slots=True)
class _Budget:
    deadline: float
    patterns: float
    guessed: bool = False


class _OutOfTime(Exception):
    """The check's budget is spent."""


_budget: ContextVar[_Budget] = ContextVar("_budget")


class Validator:
    """One compiled schema."""

    __slots__ = ("_validator",)

    def __init__(self, validator: Any) -> None:
        self._validator = validator

    def check(self, value: Any) -> str | None:
        """Return None when ``value`` conforms (or could not be settled), else where and why it does not."""
        return self.examine(value).mismatch

    def examine(self, value: Any, seconds: float = CHECK_SECONDS) -> Finding:
        """Check ``value`` (as ``json.loads`` returns it) for at most about ``seconds``; never raises."""
        budget = _Budget(monotonic() + seconds, min(seconds, PATTERN_SECONDS))
        token = _budget.set(budget)
        errors: list[Any] = []
        settled = True
        try:
            for error in islice(self._validator.iter_errors(value), _ERRORS_WEIGHED):
                if not (budget.guessed and _UNSURE_BELOW.intersection(error.absolute_schema_path)):
                    errors.append(error)  # noqa: PERF401 (those found before it breaks count)
        except Exception:  # a client's schema on a model's value: whatever breaks there is no verdict on the value
            settled = False
        finally:
            _budget.reset(token)
        return Finding(_message(_best(errors)) if errors else None, settled and not budget.guessed)

    def property(self, name: str) -> Validator | None:
        """Return the schema of one property of an object, None where the schema says nothing of it."""
        declared = [schema["properties"] for schema in self._alternatives() if "properties" in schema]
        for properties in declared:
            if name in properties:
                return Validator(self._validator.evolve(schema=properties[name]))
        for schema in self._alternatives():
            if isinstance(schema.get("additionalProperties"), dict):
                return Validator(self._validator.evolve(schema=schema["additionalProperties"]))
        return None

    def items(self) -> Validator | None:
        """Return the schema of an array's items, None where the schema says nothing of them."""
        for schema in self._alternatives():
            if isinstance(schema.get("items"), dict):
                return Validator(self._validator.evolve(schema=schema["items"]))
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
        found: list[dict[str, Any]] = []
        pending = [self._validator.schema]
        resolver = self._validator._resolver
        while pending and len(found) < 32:
            schema = pending.pop(0)
            if not isinstance(schema, dict) or any(schema is known for known in found):
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


def compile_schema(parameters: Mapping[str, Any]) -> Validator:
    """Return the validator of a JSON schema, built once per schema text; raises SchemaError.

    The dialect is that of ``$schema``, 2020-12 without one. References must resolve within the schema itself.
    """
    try:
        text = json.dumps(parameters, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is not JSON: {error}") from error
    return _compile(text)


@lru_cache(maxsize=_COMPILED_KEPT)
def _compile(text: str) -> Validator:
    try:
        schema = json.loads(text)
        if not isinstance(schema, dict):
            raise SchemaError("the schema is not an object")
        base = _dialect(schema)
        schema = _without_dialects(schema)
        base.check_schema(schema, format_checker=None)
        if _inspect(schema, base):
            # jsonschema would search the patterns on its own, without a limit.
            schema = _without_unevaluated(schema)
        return Validator(_fenced(base)(schema, registry=Registry()))
    except jsonschema_exceptions.SchemaError as error:
        raise SchemaError(_message(error)) from error
    except RecursionError as error:
        raise SchemaError("the schema is nested too deeply") from error


def _dialect(schema: dict[str, Any]) -> Any:
    named = schema.get("$schema", "")
    if not isinstance(named, str):
        raise SchemaError(f"$schema is a string, got {type(named).__name__}")
    try:
        return validator_for(schema, default=Draft202012Validator)
    except ValueError as error:
        raise SchemaError(f"$schema is not a URI: {error}") from error


def _without_dialects(schema: Any) -> Any:
    """Copy a schema without its ``$schema`` keywords: at each one jsonschema would fall back to its own validators."""
    match schema:
        case dict():
            return {
                key: value if key in _VALUES else _without_dialects(value)
                for key, value in schema.items()
                if not (key == "$schema" and isinstance(value, str))
            }
        case list():
            return [_without_dialects(each) for each in schema]
    return schema


def _without_unevaluated(schema: Any) -> Any:
    match schema:
        case dict():
            # A property of that name has a schema too; losing it costs one check and cannot reject anything.
            return {
                key: value if key in _VALUES else _without_unevaluated(value)
                for key, value in schema.items()
                if key != "unevaluatedProperties"
            }
        case list():
            return [_without_unevaluated(each) for each in schema]
    return schema


def _inspect(root: dict[str, Any], base: Any) -> bool:
    """Resolve every reference and compile every pattern; return whether ``patternProperties`` occurs."""
    specification = specification_with(base.META_SCHEMA.get("$id") or base.META_SCHEMA["id"])
    resource = specification.create_resource(root)
    resolver = Registry().with_resource("", resource).crawl().resolver_with_root(resource)
    patterned = False
    seen: set[int] = set()
    schemas: list[tuple[Any, Any]] = [(root, resolver)]
    references: list[tuple[str, Any]] = []
    while schemas or references:
        if not schemas:
            reference, resolver = references.pop()
            try:
                resolved = resolver.lookup(reference)
            except (Unresolvable, ValueError) as error:
                raise SchemaError(f"the reference {reference!r} does not resolve within the schema") from error
            if id(resolved.contents) in seen:
                continue
            if not isinstance(resolved.contents, dict | bool):
                raise SchemaError(f"the reference {reference!r} leads to no schema")
            # Nobody has looked at it yet: it lies under a keyword that the dialect does not know.
            base.check_schema(resolved.contents, format_checker=None)
            schemas.append((resolved.contents, resolved.resolver))
        schema, resolver = schemas.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        patterned |= "patternProperties" in schema
        for text in (schema.get("pattern"), *schema.get("patternProperties", ())):
            if isinstance(text, str):
                _usable(text)
        references += [(schema[key], resolver) for key in _REFERENCES if isinstance(schema.get(key), str)]
        below = specification.create_resource(schema).subresources()
        schemas += [(each.contents, resolver.in_subresource(each)) for each in below]
    return patterned


def _usable(text: str) -> None:
    try:
        _pattern(text)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        raise SchemaError(f"the pattern {text[:100]!r} cannot be used: {error}") from error


@lru_cache(maxsize=512)
def _pattern(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constructs that another version of the engine may read otherwise
        return regex.compile(text)


def _matches(pattern: str, text: str) -> bool | None:
    """Search within what is left of the budget; None = given up."""
    budget = _budget.get()
    started = monotonic()
    try:
        if budget.patterns > 0:
            return _pattern(pattern).search(text, timeout=budget.patterns) is not None
    except TimeoutError:
        pass
    finally:
        budget.patterns -= monotonic() - started
    budget.guessed = True
    return None


# Keywords, each named as in the specification. They replace those of jsonschema that search a pattern without a limit,
# compare all pairs, or divide floats.


def _pattern_keyword(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and _matches(pattern, instance) is False:
        yield jsonschema_exceptions.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for key, value in instance.items():
                if _matches(pattern, key):
                    yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def _additional_properties(validator: Any, additional: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in instance.items():
        if key in properties or any(_matches(pattern, key) is not False for pattern in patterns):
            continue
        if additional is False:
            yield jsonschema_exceptions.ValidationError(
                f"Additional properties are not allowed ({key!r} was unexpected)"
            )
        else:
            yield from validator.descend(value, additional, path=key)


def _unique_items(validator: Any, unique: bool, instance: Any, schema: Any) -> Iterator[Any]:
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


def _multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "number") or (isinstance(instance, float) and not isfinite(instance)):
        return
    # By the decimal text: 19.99 is a multiple of 0.01, though not as a float.
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
    "pattern": _pattern_keyword,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "multipleOf": _multiple_of,
}


@cache
def _fenced(base: Any) -> Any:
    """Return a dialect's validator class with our keywords, and a look at the clock before each keyword."""
    keywords = dict(base.VALIDATORS)
    keywords.update({name: keyword for name, keyword in _KEYWORDS.items() if name in keywords})
    keywords["items"] = _items_faster(keywords["items"])
    timed = {name: _timed(keyword) for name, keyword in keywords.items()}
    return extend(base, timed)  # type: ignore[no-untyped-call]


def _timed(keyword: Callable[..., Any]) -> Callable[..., Any]:
    def timed(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if monotonic() > _budget.get().deadline:
            raise _OutOfTime
        return keyword(validator, value, instance, schema)

    return timed


def _best(errors: list[Any]) -> Any:
    try:
        return jsonschema_exceptions.best_match(errors)
    except Exception:  # it looks at the schema and the value again, and breaks as examine() may
        return errors[0]


def _message(error: Any) -> str:
    text = f"{error.json_path}: {error.message}"
    # A path may hold half of a surrogate pair, which no wire can carry.
    text = text.encode("utf-8", "backslashreplace").decode()
    # The value comes first and the reason last: cut between the two.
    half = MESSAGE_LENGTH // 2
    return text if len(text) <= MESSAGE_LENGTH else f"{text[: half - 1]}…{text[-half:]}"
