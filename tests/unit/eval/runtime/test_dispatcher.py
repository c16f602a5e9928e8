"""Tests for the dispatcher, which runs the calls that a model makes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.eval.runtime.dispatcher import ToolDispatcher
from toolsim.eval.runtime.registry import ToolRegistry, ToolResult
from toolsim.eval.runtime.turn import Call, Tool

SCHEMA = {
    "type": "object",
    "properties": {"workspace_id": {"type": "string"}, "value": {}},
    "required": ["workspace_id"],
    "additionalProperties": False,
}


class Ran(list[Mapping[str, Any]]):
    """A tool that records its arguments and returns the argument ``value``."""

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        self.append(arguments)
        return arguments.get("value")


def dispatcher(ran: Ran, **settings: Any) -> ToolDispatcher:
    registry = ToolRegistry()
    registry.add(Tool("state_get", "", SCHEMA), ran)
    registry.add(Tool("state_patch", "", SCHEMA), ran)
    registry.add(Tool("facts_commit", "", {"type": "object"}), ran, model_facing=False)
    return ToolDispatcher(registry, **settings)


def call(arguments: str, name: str = "state_get") -> Call:
    return Call("call_1", name, arguments)


async def test_valid_call_runs() -> None:
    """The tool of a valid call runs, and the result contains the value that the tool returns."""
    ran = Ran()
    result = await dispatcher(ran).dispatch(call('{"workspace_id": "a", "value": [1]}'))
    assert result == ToolResult(True, [1])
    assert ran == [{"workspace_id": "a", "value": [1]}]


@pytest.mark.parametrize("name", ["nothing", "facts_commit", "state_patch"])
async def test_unavailable_tools_fail_alike(name: str) -> None:
    """Calls to unknown, hidden and masked tools cause the same error. The tools do not run, and the arguments are not
    parsed.
    """
    ran = Ran()
    limited = dispatcher(ran, allowed=["state_get", "facts_commit"], max_tool_args_bytes=1)
    result = await limited.dispatch(call("no JSON, and too long", name))
    assert result.errors == ("UNKNOWN_TOOL", "the tools on offer are state_get")
    assert not ran


async def test_oversized_arguments_are_refused() -> None:
    """Arguments that are larger than the limit, measured in bytes of UTF-8, are refused. Arguments whose size equals
    the limit are accepted.
    """
    ran = Ran()
    text = '{"workspace_id": "ä"}'
    assert (await dispatcher(ran, max_tool_args_bytes=len(text.encode())).dispatch(call(text))).ok
    result = await dispatcher(ran, max_tool_args_bytes=len(text)).dispatch(call(text))
    assert result.code == "ARGUMENTS_TOO_LARGE"
    assert len(ran) == 1


@pytest.mark.parametrize("text", ["{", "[]", '"text"', "null", "[" * 100_000, '{"a": 1} {"b": 2}'])
async def test_arguments_must_be_an_object(text: str) -> None:
    """If the arguments are not a single JSON object, the call is refused, and the tool does not run."""
    ran = Ran()
    assert (await dispatcher(ran).dispatch(call(text))).code == "INVALID_JSON"
    assert not ran


async def test_schema_mismatch_names_the_argument() -> None:
    """If arguments violate the schema, the error names the argument, so that the model can correct it."""
    result = await dispatcher(Ran()).dispatch(call('{"workspace_id": 5}'))
    assert result.code == "INVALID_ARGUMENTS"
    assert "workspace_id" in result.errors[1]


async def test_context_supplies_missing_arguments() -> None:
    """If the model omits a declared argument, its value is taken from the context. The context never replaces a value
    that the model has written.
    """
    ran = Ran()
    implicit = dispatcher(ran, context={"workspace_id": "here", "undeclared": 1})
    assert (await implicit.dispatch(call(""))).ok
    assert (await implicit.dispatch(call('{"workspace_id": "there"}'))).ok
    assert ran == [{"workspace_id": "here"}, {"workspace_id": "there"}]


async def test_oversized_output_is_withheld() -> None:
    """If the output of a tool is too large, the model receives an error instead, although the tool has run."""
    ran = Ran()
    text = '{"workspace_id": "a", "value": "%s"}'
    limited = dispatcher(ran, max_tool_output_bytes=200)
    assert (await limited.dispatch(call(text % "x" * 1))).ok
    result = await limited.dispatch(call(text % ("x" * 300)))
    assert result.code == "TOOL_OUTPUT_TOO_LARGE"
    assert "x" * 100 not in str(result.envelope())
    assert len(ran) == 2


def raising(arguments: Mapping[str, Any]) -> Any:
    raise KeyError("a secret")


async def raising_late(arguments: Mapping[str, Any]) -> Any:
    await asyncio.sleep(0)
    raise RuntimeError("a secret")


def unwritable(arguments: Mapping[str, Any]) -> Any:
    return {"a": object()}


def endless(arguments: Mapping[str, Any]) -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize("tool", [raising, raising_late, unwritable, endless])
async def test_failing_tool_is_a_result(tool: Any) -> None:
    """If a tool raises an exception or returns a value that is not JSON, the call fails, and the error does not reveal
    the exception's text.
    """
    registry = ToolRegistry()
    registry.add(Tool("broken", "", {"type": "object"}), tool)
    result = await ToolDispatcher(registry).dispatch(call("{}", "broken"))
    assert result.code == "EXECUTION_FAILED"
    assert "secret" not in str(result.errors)


async def test_async_tool_can_return_a_result() -> None:
    """A tool can be an async function and can return a ToolResult, which is not changed."""

    async def warned(arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(True, 1, ("careful",))

    registry = ToolRegistry()
    registry.add(Tool("warned", "", {"type": "object"}), warned)
    assert await ToolDispatcher(registry).dispatch(call("", "warned")) == ToolResult(True, 1, ("careful",))


@given(st.text(), st.text())
def test_any_call_yields_a_result(name: str, arguments: str) -> None:
    """Any tool name with any arguments leads to a result, never to an exception."""
    result = asyncio.run(dispatcher(Ran(), max_tool_args_bytes=50).dispatch(Call("", name, arguments)))
    assert isinstance(result, ToolResult)
