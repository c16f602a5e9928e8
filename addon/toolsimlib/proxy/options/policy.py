"""The fields of the policy that options decide.

Most options decide the field of their own name. Some are one concept of which answers need to know more than one thing:
they decide several fields, which recordings contain by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolsimlib.plan import Policy

Fields = dict[str, Any]


def _untagged(value: str) -> Fields:
    if value == "no_use_tool":
        return {"untagged": "off", "use_tool": False}
    return {"untagged": value, "use_tool": True}


def _fix_empty_final(value: str) -> Fields:
    return {"fix_empty_final": value != "off", "fix_empty_final_disable_tools": value != "with_tools"}


def _tool_use_mode(value: str) -> Fields:
    return {"tool_use_mode": value, "fallback_retry_count": 1 if value == "relaxed" else 0}


def _output_mode(value: str) -> Fields:
    in_chat = value in ("obsidian-xml", "obsidian-xml-both")
    in_responses = value in ("obsidian-xml-responses", "obsidian-xml-both")
    return {
        "output_mode": "obsidian-xml" if in_chat else "openai-json",
        "responses_output_mode": "obsidian-xml" if in_responses else "openai-json",
    }


def _stop_after_tools(value: str) -> Fields:
    stops = {"first": "on", "drop": "off"}.get(value, value)
    return {
        "stop_after_tools": stops,
        "stop_after_tools_mode": "first" if value == "first" else "burst",
        "suppress_tail_after_tools": value == "drop",
    }


def _tool_block_max(value: int) -> Fields:
    return {"tool_block_max": value, "parallel_tool_calls": value != 1}


def _tool_allowlist(value: tuple[str, ...]) -> Fields:
    return {
        "tool_allowlist": frozenset(name for name in value if not name.startswith("!")),
        "tool_denylist": frozenset(name[1:] for name in value if name.startswith("!")),
    }


def _max_tool_bytes(value: int) -> Fields:
    return {"max_tool_args_bytes": value, "max_tool_output_bytes": value}


_SEVERAL: Mapping[str, Callable[[Any], Fields]] = {
    "untagged": _untagged,
    "fix_empty_final": _fix_empty_final,
    "tool_use_mode": _tool_use_mode,
    "output_mode": _output_mode,
    "stop_after_tools": _stop_after_tools,
    "tool_block_max": _tool_block_max,
    "tool_allowlist": _tool_allowlist,
    "max_tool_bytes": _max_tool_bytes,
}


def policy_fields(values: Mapping[str, Any]) -> Fields:
    """Return the fields of the policy that these values of options decide, by their names."""
    fields: Fields = {}
    for name, value in values.items():
        if name in _SEVERAL:
            fields |= _SEVERAL[name](value)
        elif name in Policy.__dataclass_fields__:
            fields[name] = value
    return fields
