"""Runs a model's calls if the tool is allowed and the arguments are valid. The model's mistakes become error results.

The order matters. A call to a tool that is not allowed is rejected before its arguments are read, so that the error
reveals nothing about the tool. Oversized arguments are rejected before they are parsed. A tool runs only if the
arguments fit its schema.

| code | when |
|---|---|
| ``UNKNOWN_TOOL`` | no such tool, or one that this model must not call |
| ``ARGUMENTS_TOO_LARGE`` | the arguments exceed ``max_tool_args_bytes`` |
| ``INVALID_JSON`` | the arguments are not a single JSON object |
| ``INVALID_ARGUMENTS`` | the arguments do not match the schema; the text gives the location |
| ``EXECUTION_FAILED`` | the tool raised an exception (only its type is named), or its output is not JSON |
| ``TOOL_OUTPUT_TOO_LARGE`` | the tool has run, but its output exceeds ``max_tool_output_bytes`` and is withheld |
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Mapping
from typing import Any

from toolsim.eval.runtime.registry import RegisteredTool, ToolRegistry, ToolResult
from toolsim.eval.runtime.turn import Call

MAX_TOOL_BYTES = 200_000
"""Default limit for the arguments and the output of a call, in bytes. The addon has the same limit."""


class ToolDispatcher:
    """Runs calls to the tools in a registry.

    ``allowed`` are the names of the tools that may be called (None: all model-facing tools). ``context`` contains
    values from the application, such as a workspace's ID, for properties that a tool declares but a call omits.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        allowed: Collection[str] | None = None,
        context: Mapping[str, Any] | None = None,
        max_tool_args_bytes: int = MAX_TOOL_BYTES,
        max_tool_output_bytes: int = MAX_TOOL_BYTES,
    ) -> None:
        self._registry = registry
        self._allowed = None if allowed is None else frozenset(allowed)
        self._context = dict(context or {})
        self._max_args = max_tool_args_bytes
        self._max_output = max_tool_output_bytes

    async def dispatch(self, call: Call) -> ToolResult:
        """Run one call. A mistake by the model or an error in the tool results in a failure, never in an exception."""
        entry = self._registry.get(call.name)
        if entry is None or not entry.model_facing or (self._allowed is not None and call.name not in self._allowed):
            offered = ", ".join(tool.name for tool in self._registry.offered(self._allowed)) or "none"
            return ToolResult.failed("UNKNOWN_TOOL", f"the tools on offer are {offered}")
        size = len(call.arguments.encode(errors="surrogatepass"))
        if size > self._max_args:
            return ToolResult.failed(
                "ARGUMENTS_TOO_LARGE",
                f"{size} bytes, at most {self._max_args} are allowed; the tool has not run, "
                "call it again with shorter arguments",
            )
        try:
            # As in the addon, missing arguments count as an empty object.
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError) as error:
            return ToolResult.failed("INVALID_JSON", f"{error}")
        if not isinstance(arguments, dict):
            return ToolResult.failed("INVALID_JSON", f"expected an object, got {type(arguments).__name__}")
        declared = entry.tool.parameters.get("properties", {})
        arguments = {name: value for name, value in self._context.items() if name in declared} | arguments
        if entry.validator is not None and (mismatch := entry.validator.check(arguments)) is not None:
            return ToolResult.failed("INVALID_ARGUMENTS", f"{mismatch}")
        return self._fit(await _execute(entry, arguments))

    def _fit(self, result: ToolResult) -> ToolResult:
        try:
            size = len(json.dumps(result.envelope(), ensure_ascii=False).encode(errors="surrogatepass"))
        except (TypeError, ValueError, RecursionError) as error:
            return ToolResult.failed("EXECUTION_FAILED", f"its output is not JSON ({type(error).__name__})")
        if size > self._max_output:
            return ToolResult.failed("TOOL_OUTPUT_TOO_LARGE", f"{size} bytes, at most {self._max_output} are shown")
        return result


async def _execute(entry: RegisteredTool, arguments: Mapping[str, Any]) -> ToolResult:
    try:
        output = entry.execute(arguments)
        if inspect.isawaitable(output):
            output = await output
    except Exception as error:  # The exception's message is left out of the result, because it might be confidential.
        return ToolResult.failed("EXECUTION_FAILED", f"{type(error).__name__}")
    return output if isinstance(output, ToolResult) else ToolResult(True, output)
