"""Contains settings that reduce the Codex app-server to a text model without tools, built-in prompts or execution.

toolsim passes all settings to the child, and never writes them to the user's files. tests/codex checks the settings
against the prompt that a real Codex sends to its model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.json_fields import mappings

# A context window, in tokens, far larger than any real one. With a lower value, Codex would replace a long history with
# a summary.
_NO_LIMIT = 1_000_000_000

# Unknown settings only cause a warning in Codex, so the same settings work with older and newer versions.
_SETTINGS: Mapping[str, Any] = {
    "web_search": "disabled",
    "project_doc_max_bytes": 0,
    "include_environment_context": False,
    "include_permissions_instructions": False,
    "include_apps_instructions": False,
    "include_collaboration_mode_instructions": False,
    "skills.include_instructions": False,
    "tools.experimental_request_user_input.enabled": False,
    # Disables the program that the user's configuration runs after each turn.
    "notify": [],
    **{
        f"features.{name}": False
        for name in (
            "apps",
            "browser_use",
            "collaboration_modes",
            "computer_use",
            "goals",
            "hooks",
            "image_generation",
            "memories",
            "multi_agent",
            "plugins",
            "shell_snapshot",
            "shell_tool",
            "sleep_tool",
            "tool_suggest",
            "unified_exec",
            "view_image",
        )
    },
}


def settings(mcp_servers: Iterable[str]) -> dict[str, Any]:
    """Return the ``config`` for a thread. This ``config`` also disables each of the user's MCP servers by name."""
    return {**_SETTINGS, "mcp_servers": {name: {"enabled": False} for name in mcp_servers}}


def text_catalog(printed: bytes) -> bytes | None:
    """Return the output of ``codex debug models`` without the models' tools, or None if it is not a catalog.

    The changed catalog is needed because a model's properties override the settings for code mode, patches, agents and
    instructions.
    """
    catalog = parse_object(printed) or {}
    models = [_without_tools(model) for model in mappings(catalog.get("models"))]
    # Codex rejects an empty catalog at startup.
    return dump({**catalog, "models": models}).encode() if models else None


def _without_tools(model: Mapping[str, Any]) -> dict[str, Any]:
    dropped = ("tool_mode", "multi_agent_version", "default_verbosity")
    return {key: value for key, value in model.items() if key not in dropped} | {
        "shell_type": "disabled",
        "apply_patch_tool_type": None,
        "experimental_supported_tools": [],
        "supports_search_tool": False,
        "model_messages": None,
        "base_instructions": "",
        "context_window": _NO_LIMIT,
        "max_context_window": _NO_LIMIT,
        "auto_compact_token_limit": _NO_LIMIT,
    }
