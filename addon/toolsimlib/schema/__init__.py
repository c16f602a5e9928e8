"""A tool's JSON schema as a judge of arguments: jsonschema, fenced in.

The schema comes from a client and the value from a model, and both are judged on the event loop. So:

1. Nothing is ever fetched: the registry is empty, and every reference is resolved when the schema is compiled.
2. No check takes longer than its budget. A pattern that backtracks without end is given up, and counts as matching.
3. A pattern is measured before it is compiled: one line of nested repeats can stand for gigabytes of pattern.
4. Whatever breaks inside a check (recursion, overflow) leaves the value unsettled; it never escapes.

``compile`` turns a schema into a ``Validator``; ``wellformed`` looks at it first; ``keywords`` are those of
jsonschema's that had to be replaced; ``patterns`` and ``budget`` keep rules 2 and 3.
"""

from toolsimlib.schema.budget import CHECK_SECONDS, STEP_SECONDS
from toolsimlib.schema.compile import MAX_SCHEMA_BYTES, are_plain, compile_schema
from toolsimlib.schema.errors import SchemaError
from toolsimlib.schema.validator import Finding, Validator

__all__ = [
    "CHECK_SECONDS",
    "MAX_SCHEMA_BYTES",
    "STEP_SECONDS",
    "Finding",
    "SchemaError",
    "Validator",
    "are_plain",
    "compile_schema",
]
