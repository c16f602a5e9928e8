"""Checks arguments against a tool's JSON schema, using jsonschema with limits.

The schema comes from a client, the value comes from a model, and toolsim processes both on the event loop. Therefore:

1. No schema is fetched. The registry is empty, and every reference is resolved when the schema is compiled.
2. No check takes longer than its budget. A pattern search that backtracks too long is abandoned and counts as a match.
3. The size of a pattern is measured before compilation, because one line of nested repeats can expand to gigabytes.
4. An exception inside a check (recursion, overflow) leaves the result undecided and never propagates.

``wellformed`` checks a schema, ``compile`` decides whether it can be used, and ``build`` turns it into a ``Validator``,
which applies the budget. ``keywords`` replaces some of jsonschema's keywords. ``patterns`` enforces rules 2 and 3.
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
