"""Implements opt-in changes to requests for certain backends, under names that other programs also use.

A text-only backend needs few of these changes, since its calls and outputs are records. Changes to messages therefore
apply only if the backend has native tool support (``toolsim_mode=native``), over chat completions; all other changes
apply in either mode. The changes that toolsim always makes have names, too, so that a list written for another program
works unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from toolsim.core.conversation import CallOutput, Item, Text
from toolsim.core.plan import Tool
from toolsim.wire.json_fields import loaded, mapping

STRIP_DESCRIPTIONS = "openai_tools_strip_function_descriptions"
COMPACT = "tool_result_compact_envelope"

_SKIP_SIGNATURE = "skip_thought_signature_validator"
"""The value that Gemini's OpenAI-compatible API accepts instead of a lost signature."""


def _content_null(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": None} if isinstance(content, str) and not content.strip() else message


def _reasoning_empty(message: dict[str, Any]) -> dict[str, Any]:
    return message if "reasoning_content" in message else {**message, "reasoning_content": ""}


def _signatures(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "tool_calls": [_signed(call) for call in message["tool_calls"]]}


def _signed(call: Any) -> Any:
    extra = mapping(mapping(call).get("extra_content"))
    google = mapping(extra.get("google"))
    if not isinstance(call, dict) or google.get("thought_signature"):
        return call
    return {**call, "extra_content": {**extra, "google": {**google, "thought_signature": _SKIP_SIGNATURE}}}


_MESSAGE_CHANGES: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "assistant_tool_calls_content_null_if_blank": _content_null,
    "assistant_tool_calls_reasoning_content_empty_if_missing": _reasoning_empty,
    "assistant_tool_calls_signature_skip_validator_if_missing": _signatures,
}
"""Maps the name of a change to a function that changes an assistant message with calls."""

BUILT_IN = (
    "assistant_function_call_to_tool_calls",
    "assistant_tool_calls_object_to_array",
    "assistant_tool_calls_arguments_json_string_if_hash",
    "assistant_content_tool_call_tags_to_tool_calls",
    "assistant_tool_calls_arguments_blank_to_empty_object",
)
"""Names of the changes that toolsim always makes."""

_RELIABLE = ("assistant_tool_calls_content_null_if_blank", *BUILT_IN)
PRESETS: Mapping[str, tuple[str, ...]] = {
    "openai_compatible_reliability": _RELIABLE,
    "content_tag_tool_call_fallback": ("assistant_content_tool_call_tags_to_tool_calls",),
    "deepseek_openrouter_compat": (*_RELIABLE, "assistant_tool_calls_reasoning_content_empty_if_missing"),
    "gemini_openrouter_compat": (*_RELIABLE, "assistant_tool_calls_signature_skip_validator_if_missing"),
}
"""Maps the name of each preset to the names of its changes."""

NAMES = (*_MESSAGE_CHANGES, STRIP_DESCRIPTIONS, COMPACT, *BUILT_IN)


def expand(names: Iterable[str]) -> frozenset[str]:
    """Return the names of changes, with presets expanded. Raises ValueError for an unknown name."""
    found: set[str] = set()
    for name in names:
        if name not in NAMES and name not in PRESETS:
            raise ValueError(f"got {name!r}, expected one of {', '.join((*PRESETS, *NAMES))}")
        found.update(PRESETS.get(name, (name,)))
    return frozenset(found)


def tools_shown(tools: tuple[Tool, ...], transforms: Collection[str]) -> tuple[Tool, ...]:
    """Return the tools as the model sees them after the transforms."""
    if STRIP_DESCRIPTIONS not in transforms:
        return tools
    return tuple(replace(tool, description=None) for tool in tools)


def outputs_shown(items: list[Item], transforms: Collection[str]) -> list[Item]:
    """Return a conversation with the tool outputs as the model sees them after the transforms."""
    if COMPACT not in transforms:
        return items
    return [
        replace(item, parts=tuple(map(_compact_part, item.parts))) if isinstance(item, CallOutput) else item
        for item in items
    ]


def native_body(body: Mapping[str, Any], transforms: Collection[str]) -> dict[str, Any]:
    """Return the body of a request to a backend with native tool support, with the transforms applied."""
    changed = dict(body)
    messages = body.get("messages")
    if isinstance(messages, list):
        changed["messages"] = [_message(message, transforms) for message in messages]
    tools = body.get("tools")
    if STRIP_DESCRIPTIONS in transforms and isinstance(tools, list):
        changed["tools"] = [_without_description(tool) for tool in tools]
    return changed


def _message(message: Any, transforms: Collection[str]) -> Any:
    if not isinstance(message, dict):
        return message
    if message.get("role") == "tool" and COMPACT in transforms and isinstance(message.get("content"), str):
        return {**message, "content": compact(message["content"])}
    if message.get("role") == "assistant" and isinstance(message.get("tool_calls"), list) and message["tool_calls"]:
        for name, change in _MESSAGE_CHANGES.items():
            if name in transforms:
                message = change(message)
    return message


def _without_description(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    bare = {name: value for name, value in tool.items() if name != "description"}
    return {**bare, "function": _without_description(bare["function"])} if "function" in bare else bare


def _compact_part(part: Any) -> Any:
    return Text(compact(part.text)) if isinstance(part, Text) else part


def compact(output: str) -> str:
    """Return an output of the form {ok, data, warnings, errors} without empty fields, or any other output unchanged."""
    value = loaded(output)
    if value is None or not isinstance(value.get("ok"), bool):
        return output
    compacted = {name: field for name, field in value.items() if field not in (None, "", [], {}) or name == "ok"}
    return json.dumps(compacted, ensure_ascii=False, separators=(",", ":"))
