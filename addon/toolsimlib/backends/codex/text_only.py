"""What makes a Codex app-server a text model and nothing else: no tools, no prompts of its own, nothing run.

All of it is passed to the child, never written to the user's files. What was seen to need what is in the tests, which
print the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

# Far above any model's window: Codex would otherwise replace a long history by its own summary of it.
_NO_LIMIT = 1_000_000_000

# Codex ignores, with a warning, what it does not know: older and newer versions take these as well.
_SETTINGS: Mapping[str, Any] = {
    "web_search": "disabled",
    "project_doc_max_bytes": 0,
    "include_environment_context": False,
    "include_permissions_instructions": False,
    "include_apps_instructions": False,
    "include_collaboration_mode_instructions": False,
    "skills.include_instructions": False,
    "tools.experimental_request_user_input.enabled": False,
    # The user's own program, run after each turn.
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
    """Return a thread's ``config``, with the user's own MCP servers switched off by name."""
    return {**_SETTINGS, "mcp_servers": {name: {"enabled": False} for name in mcp_servers}}


def text_catalog(printed: bytes) -> bytes | None:
    """Return the model catalogue that ``codex debug models`` printed, each model bare of tools; None if it is not one.

    The catalogue decides by model, over all settings, on code mode, patches, agents and their instructions.
    """
    try:
        catalog = json.loads(printed)
    except (ValueError, RecursionError):
        return None
    if not isinstance(catalog, dict) or not isinstance(catalog.get("models"), list):
        return None
    models = [_bare(model) for model in catalog["models"] if isinstance(model, dict)]
    # An empty catalogue is refused by Codex at start-up.
    return json.dumps({**catalog, "models": models}).encode() if models else None


def _bare(model: Mapping[str, Any]) -> dict[str, Any]:
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
