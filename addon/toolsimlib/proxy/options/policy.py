"""The fields of the policy that options decide.

Most options decide the field of their own name. Some are one concept of which answers need to know more than one thing:
they decide several fields, which recordings contain by their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolsimlib.plan import Policy


def policy_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the policy that these values of options decide, by their names."""
    fields: dict[str, Any] = {}
    for name, value in values.items():
        fields |= _fields(name, value)
    return fields


def _fields(option: str, value: Any) -> dict[str, Any]:
    match option:
        case "untagged":
            uses_tool = value != "no_use_tool"
            return {"untagged": value if uses_tool else "off", "use_tool": uses_tool}
        case "fix_empty_final":
            return {"fix_empty_final": value != "off", "fix_empty_final_disable_tools": value != "with_tools"}
        case "tool_use_mode":
            return {"tool_use_mode": value, "fallback_retry_count": 1 if value == "relaxed" else 0}
        case "output_mode":
            in_chat = value in ("obsidian-xml", "obsidian-xml-both")
            in_responses = value in ("obsidian-xml-responses", "obsidian-xml-both")
            return {
                "output_mode": "obsidian-xml" if in_chat else "openai-json",
                "responses_output_mode": "obsidian-xml" if in_responses else "openai-json",
            }
        case "stop_after_tools":
            return {
                "stop_after_tools": {"first": "on", "drop": "off"}.get(value, value),
                "stop_after_tools_mode": "first" if value == "first" else "burst",
                "suppress_tail_after_tools": value == "drop",
            }
        case "tool_block_max":
            return {"tool_block_max": value, "parallel_tool_calls": value != 1}
        case "tool_allowlist":
            return {
                "tool_allowlist": frozenset(name for name in value if not name.startswith("!")),
                "tool_denylist": frozenset(name[1:] for name in value if name.startswith("!")),
            }
        case "max_tool_bytes":
            return {"max_tool_args_bytes": value, "max_tool_output_bytes": value}
    return {option: value} if option in Policy.__dataclass_fields__ else {}
