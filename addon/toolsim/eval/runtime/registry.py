"""Registers the tools of an application. Each tool is either shown to the model or hidden from it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolsim.eval.runtime.turn import Tool
from toolsim.schema import SchemaError, Validator, compile_schema

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

Executor = Callable[[Mapping[str, Any]], Any | Awaitable[Any]]
"""A function that runs a tool with valid arguments and returns a ToolResult or JSON data. It can be async."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call, as the model sees it. ``errors`` contains an error code and an explanation."""

    ok: bool
    data: Any = None
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @classmethod
    def failed(cls, code: str, *explanation: str) -> ToolResult:
        """Return a failure with an error code in uppercase, and an explanation."""
        return cls(False, errors=(code, *explanation))

    @property
    def code(self) -> str:
        """The error code, or "" for a success."""
        return self.errors[0] if self.errors else ""

    def envelope(self) -> dict[str, Any]:
        """Return the result as the object ``{ok, data, warnings, errors}``."""
        return {"ok": self.ok, "data": self.data, "warnings": list(self.warnings), "errors": list(self.errors)}


@dataclass(frozen=True, slots=True)
class RegisteredTool:
    """A tool and its executor. With ``model_facing=False``, only the application can see and call it."""

    tool: Tool
    execute: Executor
    model_facing: bool = True
    validator: Validator | None = field(default=None, compare=False)


class ToolRegistry:
    """The tools of one application, in the order in which they were added."""

    def __init__(self) -> None:
        self._tools: dict[str, RegisteredTool] = {}

    def add(self, tool: Tool, execute: Executor, *, model_facing: bool = True) -> None:
        """Add a tool. Raises ValueError if the name is already used or not in snake_case, or the schema is invalid."""
        if not _NAME.fullmatch(tool.name):
            raise ValueError(f"got {tool.name!r}, expected a tool name in snake_case without dots")
        if tool.name in self._tools:
            raise ValueError(f"a tool named {tool.name} is already registered")
        try:
            validator = compile_schema(tool.parameters)
        except SchemaError as error:
            raise ValueError(f"{tool.name}: {error}") from error
        self._tools[tool.name] = RegisteredTool(tool, execute, model_facing, validator)

    def get(self, name: str) -> RegisteredTool | None:
        """Return the tool with this name, or None if there is none."""
        return self._tools.get(name)

    def offered(self, allowed: Collection[str] | None = None) -> tuple[Tool, ...]:
        """Return the model-facing tools, or only those in ``allowed`` if it is not None."""
        return tuple(
            entry.tool
            for name, entry in self._tools.items()
            if entry.model_facing and (allowed is None or name in allowed)
        )
