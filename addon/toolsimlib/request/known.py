"""A cache of results for sets of tools: a client sends the same set with each request.

``wire.tools`` returns the very same ``Tool``s for the same declarations. So results that depend only on them are cached
by identity, which costs next to nothing to compare; the number of cached sets is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from toolsimlib.plan import Tool
from toolsimlib.request.record import parameters_line
from toolsimlib.schema import SchemaError, are_plain, compile_schema

_MAX_SETS = 64

_MAX_ATOMS = 25_000
"""For the patterns of all strict tools of a request, which are compiled on the event loop: up to 50 ms."""


@dataclass(frozen=True, slots=True)
class _Set:
    """Tools as a key: equal if they are the very same ones. It holds them, so that no other object gets their ids."""

    ids: tuple[int, ...]
    tools: Sequence[Tool] = field(compare=False)


class InvalidSchema(Exception):
    """The schema of a strict ``tool`` cannot be used; ``problem`` says why."""

    def __init__(self, tool: Tool, problem: SchemaError) -> None:
        super().__init__(str(problem))
        self.tool = tool
        self.problem = problem


def check_strict(tools: Sequence[Tool], max_bytes: int) -> None:
    """Check that the schemas of strict tools compile, of at most ``max_bytes`` each. Raises InvalidSchema."""
    _check_strict(_set(tools), max_bytes)


def entries(tools: Sequence[Tool], write: Callable[[Tool, str], str], sentinel: str) -> str:
    """Return what ``write`` returns for each tool, joined by line ends."""
    return _entries(_set(tools), write, sentinel)


def _set(tools: Sequence[Tool]) -> _Set:
    return _Set(tuple(map(id, tools)), tools)


@lru_cache(maxsize=_MAX_SETS)
def _check_strict(key: _Set, max_bytes: int) -> None:
    schemas = [(tool, tool.parameters) for tool in key.tools if tool.strict and tool.parameters is not None]
    if are_plain(((schema, parameters_line(tool)) for tool, schema in schemas), max_bytes):
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


@lru_cache(maxsize=_MAX_SETS)
def _entries(key: _Set, write: Callable[[Tool, str], str], sentinel: str) -> str:
    return "\n".join(write(tool, sentinel) for tool in key.tools)
