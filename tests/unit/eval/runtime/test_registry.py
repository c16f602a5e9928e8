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
    """A tool is refused if some providers do not accept its name, or if the name could be mistaken for a name in a
    namespace.
    """
    with pytest.raises(ValueError, match="snake_case"):
        ToolRegistry().add(Tool(name, "", ANY), lambda arguments: None)


def test_duplicate_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="already"):
        registry().add(Tool("state_get", "", ANY), lambda arguments: None)


def test_invalid_schema_is_refused() -> None:
    """A tool with an invalid schema is refused when it is added, not when a model first calls it."""
    with pytest.raises(ValueError, match="state_get"):
        ToolRegistry().add(Tool("state_get", "", {"type": "no such type"}), lambda arguments: None)


def test_hidden_tools_are_never_offered() -> None:
    """A tool that is not intended for models is never offered, even if the allowlist contains it. Tools are offered in
    the order in which they were added.
    """
    assert [tool.name for tool in registry().offered()] == ["state_get", "state_patch"]
    assert [tool.name for tool in registry().offered(["facts_commit", "state_patch"])] == ["state_patch"]
    assert registry().get("facts_commit") is not None


def test_envelope_has_all_fields() -> None:
    """The envelope of a tool result always contains the same four fields. In ``errors``, the code comes before the
    explanation.
    """
    assert ToolResult(True, 1).envelope() == {"ok": True, "data": 1, "warnings": [], "errors": []}
    failed = ToolResult.failed("LOCKED", "/draft/owner")
    assert failed.envelope() == {"ok": False, "data": None, "warnings": [], "errors": ["LOCKED", "/draft/owner"]}
    assert (failed.code, ToolResult(True).code) == ("LOCKED", "")
