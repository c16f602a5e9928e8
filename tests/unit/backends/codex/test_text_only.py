"""Tests for the settings that turn Codex into a text-only model. ``tests/codex`` applies them to the real program."""

import json

import pytest
from toolsim.backends.codex.text_only import settings, text_catalog


def test_catalog_loses_tools_and_keeps_models() -> None:
    """In the text-only catalog, models keep their names and input modalities, but lose their tools and instructions.
    Their context window becomes practically unlimited.
    """
    model = {
        "slug": "m",
        "input_modalities": ["text", "image"],
        "tool_mode": "code_mode_only",
        "multi_agent_version": "v2",
        "apply_patch_tool_type": "freeform",
        "shell_type": "unified_exec",
        "context_window": 272_000,
        "base_instructions": "You are Codex",
    }
    bare = text_catalog(json.dumps({"models": [model], "etag": "x"}).encode())
    assert bare is not None
    catalog = json.loads(bare)
    assert catalog["etag"] == "x"
    [kept] = catalog["models"]
    assert kept["slug"] == "m"
    assert kept["input_modalities"] == ["text", "image"]
    assert "tool_mode" not in kept
    assert "multi_agent_version" not in kept
    assert kept["apply_patch_tool_type"] is None
    assert kept["shell_type"] == "disabled"
    assert kept["base_instructions"] == ""
    assert kept["context_window"] > 10**8


@pytest.mark.parametrize("printed", [b"", b"usage: codex", b"[]", b'{"models":{}}', b'{"models":[]}', b"[" * 100_000])
def test_other_output_returns_none(printed: bytes) -> None:
    """The result is None if the output of Codex is not a model catalog, for example if it is a usage message."""
    assert text_catalog(printed) is None


def test_user_mcp_servers_are_disabled_by_name() -> None:
    """The user's MCP servers are disabled with nested settings instead of dotted keys, because their names can contain
    dots.
    """
    assert settings(["a.b"])["mcp_servers"] == {"a.b": {"enabled": False}}
    assert settings([])["features.shell_tool"] is False
