"""What a client's schema costs before any of its tools is called: next to nothing, if it is plain.

jsonschema and what it needs take a fifth of the time of a start. They are imported with the first schema that is really
compiled (``build``): most tools of a catalogue are never called.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from toolsimlib.schema.errors import SchemaError
from toolsimlib.schema.validator import Validator
from toolsimlib.schema.wellformed import are_plainly_wellformed, is_plain

MAX_SCHEMA_BYTES = 64 * 1024
"""A tool with a longer schema fills a model's context by itself. Compiling takes up to 0.4 ms per kilobyte."""

_MAX_COMPILED = 256
"""Compiled schemas cached: the tool sets of a few clients. Each takes about ten times its text."""

_encode = json.JSONEncoder().encode
_DEFAULT_URI = "https://json-schema.org/draft/2020-12/schema"


def compile_schema(parameters: Mapping[str, Any], max_bytes: int = MAX_SCHEMA_BYTES) -> Validator:
    """Return the validator of a JSON schema of at most ``max_bytes``, built once per schema text; raises SchemaError.

    The dialect is that of ``$schema``, 2020-12 without one. References must resolve within the schema itself.
    """
    try:
        text = json.dumps(parameters, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is not JSON: {error}") from error
    if len(text) > max_bytes:
        raise SchemaError(f"the schema is too large: expected at most {max_bytes} bytes, got {len(text)}")
    return _compiled(text)


def are_plain(schemas: Iterable[tuple[Mapping[str, Any], str]], max_bytes: int) -> bool:
    """Return whether each schema would certainly compile, and none has a pattern, a reference or its own dialect.

    For a catalogue this takes a third of the time of compiling, which tools that are never called do not need.
    ``compile_schema`` judges what is not plain, and says why. Each schema comes with its text in any spelling of JSON.
    """
    try:
        pairs = list(schemas)
        return (
            is_plain(" ".join([text for _, text in pairs]))
            # No character takes more than two escapes.
            and all(12 * len(text) <= max_bytes or len(_encode(schema)) <= max_bytes for schema, text in pairs)
            and are_plainly_wellformed([schema for schema, _ in pairs], _DEFAULT_URI)
        )
    except (TypeError, ValueError, RecursionError):
        return False


@lru_cache(maxsize=_MAX_COMPILED)
def _compiled(text: str) -> Validator:
    from toolsimlib.schema.build import build  # on demand: see the head

    return build(text)
