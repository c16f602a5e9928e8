"""Builds a validator from a JSON schema, resolving its references and compiling its patterns."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from toolsim.schema.errors import SchemaError, best, message
from toolsim.schema.keywords import with_deadline_checks
from toolsim.schema.patterns import check_pattern
from toolsim.schema.validator import Validator
from toolsim.schema.wellformed import SCHEMAS_BY_NAME, are_plainly_wellformed, is_plain

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_VALUE_KEYWORDS = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords that contain values rather than schemas."""
_NAME_KEYWORDS = frozenset((*SCHEMAS_BY_NAME.split(), "dependencies", "dependentRequired"))
"""Keywords that contain an object whose keys are names rather than keywords."""

DEFAULT = Draft202012Validator
"""The dialect of a schema without ``$schema``."""

_NOTHING: Registry[Any] = Registry()
"""An empty registry, so that references to other schemas cannot be resolved."""

_MAX_DOUBTFUL = 4096
"""Maximum size, in characters, of a malformed schema that is passed to jsonschema to locate the error. This takes 7 ms
per kilobyte.
"""

_MAX_UNDECLARED = 16
"""Maximum number of references to values under unknown keywords. It is not certain that these values are schemas, so
each of them is checked separately.
"""


def build(schema: Any, text: str) -> Validator:
    """Return the validator for a schema. ``text``: the schema as JSON.

    Raises SchemaError if the schema is invalid or cannot be used, for example because a reference does not resolve
    within the schema.
    """
    if not isinstance(schema, dict):
        raise SchemaError("the schema is not an object")
    base = _dialect(schema)
    if '"$schema"' in text:
        # If a subschema contained ``$schema``, jsonschema would check it with its own validator class.
        schema = _without(schema, "$schema", str)
    _check_wellformed(schema, base)
    patterned, atoms = (False, 0) if is_plain(text) else _inspect(schema, base)
    if patterned:
        # To check ``unevaluatedProperties``, jsonschema would search the patterns itself, without a time limit.
        schema = _without(schema, "unevaluatedProperties")
    return Validator(partial(validator_of, schema, base), atoms)


def validator_of(schema: dict[str, Any], base: Any) -> Any:
    """Return jsonschema's validator for a schema that is known to be valid. ``base``: the validator class of its
    dialect.
    """
    return with_deadline_checks(base)(schema, registry=_NOTHING)


def _dialect(schema: dict[str, Any]) -> Any:
    named = schema.get("$schema", "")
    if not isinstance(named, str):
        raise SchemaError(f"$schema: got {type(named).__name__}, expected a string")
    try:
        return validator_for(schema, default=DEFAULT)
    except ValueError as error:
        raise SchemaError(f"$schema is not a URI: {error}") from error


def _check_wellformed(schema: Any, base: Any) -> None:
    if are_plainly_wellformed([schema], _uri(base)):
        return
    if len(json.dumps(schema)) > _MAX_DOUBTFUL:
        raise SchemaError("the schema is invalid in its dialect, and too large for toolsim to locate the error")
    # ``check_schema`` iterates over a set, so the reported error would vary between processes.
    errors = validator_for(base.META_SCHEMA, default=base)(base.META_SCHEMA).iter_errors(schema)
    if (first := min(errors, key=_path, default=None)) is not None:
        raise SchemaError(message(best([first])))


def _path(error: Any) -> list[str]:
    return list(map(str, error.absolute_path))


def _uri(base: Any) -> str:
    uri: str = base.META_SCHEMA.get("$id") or base.META_SCHEMA["id"]
    return uri


def _without(schema: Any, keyword: str, kind: type = object) -> Any:
    """Return a copy of a schema, and of all schemas in it, without a ``keyword`` whose value has the type ``kind``.

    Properties whose name is the same as the keyword are kept.
    """
    match schema:
        case dict():
            return {
                key: _within(key, value, keyword, kind)
                for key, value in schema.items()
                if not (key == keyword and isinstance(value, kind))
            }
        case list():
            return [_without(item, keyword, kind) for item in schema]
    return schema


def _within(key: str, value: Any, keyword: str, kind: type) -> Any:
    """Return a copy of the value of ``key`` in a schema. The ``keyword`` is removed from all schemas in the value."""
    if key in _VALUE_KEYWORDS:
        return value
    if key in _NAME_KEYWORDS and isinstance(value, dict):
        return {name: _without(schema, keyword, kind) for name, schema in value.items()}
    return _without(value, keyword, kind)


def _inspect(root: dict[str, Any], base: Any) -> tuple[bool, int]:
    """Resolve every reference in a schema, and compile every pattern. Raises SchemaError if this is impossible.

    Returns whether ``patternProperties`` occurs, and the total size of the patterns, in atoms.
    """
    specification = specification_with(_uri(base))
    resource = specification.create_resource(root)
    resolver = Registry().with_resource("", resource).crawl().resolver_with_root(resource)
    patterned = False
    undeclared = atoms = 0
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
                raise SchemaError(f"the reference {reference!r} does not point to a schema")
            # The target is under a keyword that the dialect does not define, so it has not been checked yet.
            undeclared += 1
            if undeclared > _MAX_UNDECLARED:
                raise SchemaError(
                    f"more than {_MAX_UNDECLARED} references point to places that are not known to be schemas"
                )
            _check_wellformed(resolved.contents, base)
            schemas.append((resolved.contents, resolved.resolver))
        schema, resolver = schemas.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        patterned |= "patternProperties" in schema
        for text in (schema.get("pattern"), *schema.get("patternProperties", ())):
            if isinstance(text, str):
                atoms += check_pattern(text, atoms)
        references += [(schema[key], resolver) for key in _REFERENCES if isinstance(schema.get(key), str)]
        below = specification.create_resource(schema).subresources()
        schemas += [(sub.contents, resolver.in_subresource(sub)) for sub in below]
    return patterned, atoms
