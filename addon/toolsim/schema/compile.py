"""Compiles client schemas lazily, so that simple schemas cost almost nothing until a tool is called.

The import of jsonschema and its dependencies would take a fifth of the startup time. A schema without patterns,
references or ``$schema`` is only parsed and traversed (``wellformed``), and jsonschema is imported when a value is
first checked. For all other schemas, jsonschema is imported immediately (``build``). Compiling the schemas of 128
strict tools (160 kB) takes 4 ms; jsonschema's own check of these schemas would take a second.
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
"""Maximum size of a schema, in bytes. A longer schema would fill a model's context on its own, and compiling takes up
to 0.4 ms per kilobyte.
"""

_MAX_COMPILED = 256
"""Maximum number of schemas in the cache, enough for the tools of a few clients. A compiled schema takes about ten
times the memory of its text.
"""

_DEFAULT_URI = "https://json-schema.org/draft/2020-12/schema"


def compile_schema(parameters: Mapping[str, Any]) -> Validator:
    """Return the validator for a JSON schema, from a cache if possible.

    Raises SchemaError if the schema is invalid, too large or nested too deeply.

    ``$schema`` selects the dialect, 2020-12 by default. References must resolve within the schema itself.
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
    from toolsim.schema.build import DEFAULT, validator_of  # Imported on demand; see the module docstring.

    return validator_of(schema, DEFAULT)


def _built(schema: Any, text: str) -> Validator:
    from toolsim.schema.build import build  # Imported on demand; see the module docstring.

    return build(schema, text)
