"""Whether the schemas of strict tools can be used, found out once for the same set of tools."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from toolsimlib.plan import Tool
from toolsimlib.request.forms import MAX_TOOL_SETS, ToolSet
from toolsimlib.schema import SchemaError, are_plain, compile_schema
from toolsimlib.wire.json_codec import value_line

_MAX_ATOMS = 25_000
"""For the patterns of all strict tools of a request, which are compiled on the event loop: up to 50 ms."""


class InvalidSchema(Exception):
    """The schema of a strict ``tool`` cannot be used; ``problem`` says why."""

    def __init__(self, tool: Tool, problem: SchemaError) -> None:
        super().__init__(str(problem))
        self.tool = tool
        self.problem = problem


def check_strict(tools: Sequence[Tool], max_bytes: int) -> None:
    """Check that the schemas of strict tools compile, of at most ``max_bytes`` each. Raises InvalidSchema."""
    _check_strict(ToolSet.of(tools), max_bytes)


@lru_cache(maxsize=MAX_TOOL_SETS)
def _check_strict(key: ToolSet, max_bytes: int) -> None:
    schemas = [(tool, tool.parameters) for tool in key.tools if tool.strict and tool.parameters is not None]
    if are_plain(((schema, value_line(tool.shown_parameters)) for tool, schema in schemas), max_bytes):
        return
    atoms = 0
    for tool, schema in schemas:
        try:
            atoms += compile_schema(schema, max_bytes).atoms
        except SchemaError as problem:
            raise InvalidSchema(tool, problem) from problem
        if atoms > _MAX_ATOMS:
            message = f"the patterns of all strict tools up to this one are too large: more than {_MAX_ATOMS} atoms"
            raise InvalidSchema(tool, SchemaError(message))
