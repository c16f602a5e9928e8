"""Checks arguments against a tool's JSON schema, using jsonschema with limits.

The schema comes from a client, the value comes from a model, and toolsim processes both on the event loop. Therefore:

1. No schema is fetched from a URL. Every reference is resolved within the schema when the schema is compiled.
2. No check takes longer than its time budget. If the search for a pattern takes too long, it is abandoned and counts as
   a match.
3. The size of a pattern is measured before compilation, because a short pattern with nested repeats can need gigabytes
   of memory.
4. If a check raises an exception (recursion, overflow), the exception does not propagate, and the result states that
   the check was not completed.

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
