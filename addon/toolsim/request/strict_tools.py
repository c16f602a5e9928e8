"""Checks, once for each set of tools, whether the schemas of strict tools can be used."""

from __future__ import annotations

from functools import lru_cache

from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import BadRequest
from toolsim.core.plan import Tool
from toolsim.request.forms import MAX_TOOL_SETS, ToolSet
from toolsim.schema import SchemaError, compile_schema
from toolsim.wire.tools import schema_param

_MAX_ATOMS = 25_000
"""Maximum total size of the regular expressions in the schemas of a request's strict tools, in atoms. Compiling
expressions of this size takes up to 50 ms.
"""


def check_strict(request: ClientRequest) -> None:
    """Check that the schemas of all strict tools compile. Raises BadRequest if a schema does not compile."""
    if (found := _unusable(ToolSet.of(request.tools))) is not None:
        tool, problem = found
        message = f"Invalid schema for function '{tool.wire_name}': {problem}"
        raise BadRequest(message, schema_param(request, tool.name), "invalid_function_parameters")


@lru_cache(maxsize=MAX_TOOL_SETS)
def _unusable(key: ToolSet) -> tuple[Tool, str] | None:
    """Return the first strict tool whose schema cannot be used, with the reason, or None if all can be used."""
    atoms = 0
    for tool in key.tools:
        if not tool.strict or tool.parameters is None:
            continue
        try:
            atoms += compile_schema(tool.parameters).atoms
        except SchemaError as problem:
            return tool, str(problem)
        if atoms > _MAX_ATOMS:
            return tool, f"the patterns of the strict tools are too large: expected at most {_MAX_ATOMS} atoms in total"
    return None
