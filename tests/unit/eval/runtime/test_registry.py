"""Tests for the registry of an application's tools."""

from __future__ import annotations

import pytest
from toolsim.eval.runtime.registry import ToolRegistry, ToolResult
from toolsim.eval.runtime.turn import Tool

ANY = {"type": "object"}


def registry() -> ToolRegistry:
    tools = ToolRegistry()
    tools.add(Tool("state_get", "Read.", ANY), lambda arguments: None)
    tools.add(Tool("state_patch", "Write.", ANY), lambda arguments: None)
    tools.add(Tool("facts_commit", "Commit.", ANY), lambda arguments: None, model_facing=False)
    return tools


@pytest.mark.parametrize("name", ["", "State", "state.get", "state-get", "_state", "state__get", "1state", "state_"])
def test_unportable_tool_names_are_refused(name: str) -> None:
    """Adding a tool fails if a provider might refuse its name, or if the name looks like a namespace."""
    with pytest.raises(ValueError, match="snake_case"):
        ToolRegistry().add(Tool(name, "", ANY), lambda arguments: None)


def test_duplicate_name_is_an_error() -> None:
    """Adding a second tool with the same name is an error instead of a replacement."""
    with pytest.raises(ValueError, match="already"):
        registry().add(Tool("state_get", "", ANY), lambda arguments: None)


def test_invalid_schema_is_refused() -> None:
    """An invalid schema is refused when the tool is added, rather than when a model first calls it."""
    with pytest.raises(ValueError, match="state_get"):
        ToolRegistry().add(Tool("state_get", "", {"type": "no such type"}), lambda arguments: None)


def test_hidden_tools_are_never_offered() -> None:
    """A tool that is not model-facing is never offered, even if an application lists it. Tools keep their
    registration order."""
    assert [tool.name for tool in registry().offered()] == ["state_get", "state_patch"]
    assert [tool.name for tool in registry().offered(["facts_commit", "state_patch"])] == ["state_patch"]
    assert registry().get("facts_commit") is not None


def test_envelope_has_all_fields() -> None:
    """An envelope always has all four fields, and the error code precedes its explanation."""
    assert ToolResult(True, 1).envelope() == {"ok": True, "data": 1, "warnings": [], "errors": []}
    failed = ToolResult.failed("LOCKED", "/draft/owner")
    assert failed.envelope() == {"ok": False, "data": None, "warnings": [], "errors": ["LOCKED", "/draft/owner"]}
    assert (failed.code, ToolResult(True).code) == ("LOCKED", "")
