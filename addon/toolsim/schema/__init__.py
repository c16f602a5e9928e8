"""Checks arguments against a tool's JSON schema: jsonschema, with limits.

The schema comes from a client and the value from a model, and both are processed on the event loop. Therefore:

1. Nothing is fetched. The registry is empty, and every reference is resolved when the schema is compiled.
2. No check takes longer than its budget. A pattern search that backtracks too long is abandoned and counts as a match.
3. A pattern is measured before it is compiled: one line of nested repeats can expand to gigabytes.
4. An exception inside a check (recursion, overflow) leaves the value unsettled and never escapes.

``compile`` decides whether a schema can be used, and ``build`` turns it into a ``Validator``, which
has the budget. ``wellformed`` checks it first. ``keywords`` replaces some of jsonschema's keywords.
``patterns`` enforces rules 2 and 3.
"""

from toolsim.schema.compile import MAX_SCHEMA_BYTES, compile_schema
from toolsim.schema.errors import SchemaError
from toolsim.schema.validator import STEP_SECONDS, CheckResult, Validator

__all__ = [
    "MAX_SCHEMA_BYTES",
    "STEP_SECONDS",
    "CheckResult",
    "SchemaError",
    "Validator",
    "compile_schema",
]
