"""What a client's schema costs before any of its tools is called: next to nothing, if it is plain.

jsonschema and what it needs take a fifth of the time of a start. A schema without patterns, references and a dialect of
its own is only read and walked (``wellformed``); they are imported when a value is first checked, or for any other
schema (``build``). 128 strict tools of 160 kB take 4 ms, once; jsonschema's own check of them takes a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from toolsim.schema.errors import SchemaError
from toolsim.schema.validator import Validator
from toolsim.schema.wellformed import are_plainly_wellformed, is_plain

MAX_SCHEMA_BYTES = 64 * 1024
"""A tool with a longer schema fills a model's context by itself. Compiling takes up to 0.4 ms per kilobyte."""

_MAX_COMPILED = 256
"""Compiled schemas cached: the tool sets of a few clients. Each takes about ten times its text."""

_DEFAULT_URI = "https://json-schema.org/draft/2020-12/schema"


def compile_schema(parameters: Mapping[str, Any]) -> Validator:
    """Return the validator of a JSON schema, built once per schema text; raises SchemaError.

    The dialect is that of ``$schema``, 2020-12 without one. References must resolve within the schema itself.
    """
    try:
        text = json.dumps(parameters, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is not JSON: {error}") from error
    if len(text) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"the schema is too large: expected at most {MAX_SCHEMA_BYTES} bytes, got {len(text)}")
    return _compiled(text)


@lru_cache(maxsize=_MAX_COMPILED)
def _compiled(text: str) -> Validator:
    try:
        schema = json.loads(text)
        is_simple = isinstance(schema, dict) and is_plain(text) and are_plainly_wellformed([schema], _DEFAULT_URI)
        return Validator(partial(_made, schema)) if is_simple else _built(schema, text)
    except RecursionError as error:
        raise SchemaError("the schema is nested too deeply") from error


def _made(schema: dict[str, Any]) -> Any:
    from toolsim.schema.build import DEFAULT, validator_of  # on demand: see the head

    return validator_of(schema, DEFAULT)


def _built(schema: Any, text: str) -> Validator:
    from toolsim.schema.build import build  # on demand: see the head

    return build(schema, text)
