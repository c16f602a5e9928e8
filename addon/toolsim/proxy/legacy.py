"""Names from earlier versions: renamed options, values, headers and metrics, removed options, environment variables.

1. *Renamed* options and values keep working for one release. ``startup`` logs a warning with the current name. Old
   names in profiles and recordings are converted without a warning.
2. Renamed *headers* and *metrics* are sent under both names for one release. Renamed fields and codes of the log and of
   traces changed immediately; old names in recordings are converted.
3. A *removed* option prevents startup, with a one-line message about its replacement.
4. Each *environment variable* of toolsim's predecessor changes the default of an option. Values are parsed as in the
   predecessor: they are case-insensitive, and Boolean values may have any of the usual spellings. An invalid value is
   ignored with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from toolsim.core.policy import OUTPUT_MODES

_TRUE = ("1", "true", "yes", "on", "y", "t", "enabled")
_FALSE = ("0", "false", "no", "off", "n", "f", "disabled")


def _boolean(word: str) -> bool:
    if word.lower() in _TRUE:
        return True
    if word.lower() in _FALSE:
        return False
    raise ValueError(f"got {word!r}, expected true or false")


def _auto_or_boolean(word: str) -> str:
    if word.lower() == "auto":
        return "auto"
    return "on" if _boolean(word) else "off"


def _mode(word: str) -> str:
    return _one_of(OUTPUT_MODES.get(word.lower(), word), ("openai-json", "obsidian-xml"))


def _way(word: str) -> str:
    return _one_of(word.lower(), ("burst", "first"))


def _one_of(word: str, known: tuple[str, ...]) -> str:
    if word not in known:
        raise ValueError(f"got {word!r}, expected one of {', '.join(known)}")
    return word


def _number(word: str) -> int:
    if not re.fullmatch(r"\+?\d{1,12}", word, re.ASCII):
        raise ValueError(f"got {word!r}, expected a whole number, 0 or more")
    return int(word)


VARIABLES: Mapping[str, Callable[[str], str | int | bool]] = {
    "PROXY_OUTPUT_MODE": _mode,
    "PROXY_RESPONSES_OUTPUT_MODE": _mode,
    "PROXY_STOP_AFTER_TOOLS": _auto_or_boolean,
    "PROXY_STOP_AFTER_TOOLS_MODE": _way,
    "PROXY_SUPPRESS_TAIL_AFTER_TOOLS": _boolean,
    "PROXY_ENABLE_PARALLEL_TOOL_CALLS": _boolean,
    "PROXY_TOOL_BLOCK_MAX": _number,
    "PROXY_TOOL_BLOCK_DEDUP": _boolean,
    "PROXY_TOOL_BLOCK_DELIMITER": str,
}


def from_environment(environment: Mapping[str, str]) -> tuple[dict[str, str | int | bool], list[str]]:
    """Return the defaults from the environment, by option name, and a warning for each invalid variable."""
    given: dict[str, str | int | bool] = {}
    warnings = []
    for name, read in VARIABLES.items():
        # A string value is not stripped, because it may be a delimiter that consists of spaces or line breaks.
        word = environment.get(name, "") if read is str else environment.get(name, "").strip()
        if not word:
            continue
        try:
            given[name.removeprefix("PROXY_")] = read(word)
        except ValueError as problem:
            warnings.append(f"{name}={environment[name]!r} is ignored: {problem}")
    return _defaults(given), warnings


def _defaults(given: Mapping[str, str | int | bool]) -> dict[str, str | int | bool]:
    """Convert the predecessor's environment variables to option defaults. One option can replace several variables."""
    defaults: dict[str, str | int | bool] = {}
    if "OUTPUT_MODE" in given or "RESPONSES_OUTPUT_MODE" in given:
        in_chat = given.get("OUTPUT_MODE") == "obsidian-xml"
        in_responses = given.get("RESPONSES_OUTPUT_MODE") == "obsidian-xml"
        defaults["output_mode"] = _OUTPUT[in_chat, in_responses]
    stops = given.get("STOP_AFTER_TOOLS", "auto")
    if given.get("STOP_AFTER_TOOLS_MODE") == "first" and stops != "off":
        defaults["stop_after_tools"] = "first"
    elif given.get("SUPPRESS_TAIL_AFTER_TOOLS") is True and stops != "on":
        defaults["stop_after_tools"] = "drop"
    elif "STOP_AFTER_TOOLS" in given:
        defaults["stop_after_tools"] = stops
    if given.get("ENABLE_PARALLEL_TOOL_CALLS") is False:
        defaults["tool_block_max"] = 1
    elif "TOOL_BLOCK_MAX" in given:
        defaults["tool_block_max"] = given["TOOL_BLOCK_MAX"]
    for name in ("TOOL_BLOCK_DEDUP", "TOOL_BLOCK_DELIMITER"):
        if name in given:
            defaults[name.lower()] = given[name]
    return defaults


_OUTPUT = {
    (False, False): "openai-json",
    (True, False): "obsidian-xml",
    (False, True): "obsidian-xml-responses",
    (True, True): "obsidian-xml-both",
}


# -- options of earlier versions --

_CONSTANT = "the value can no longer be changed"
_PORT = "toolsim_backend uses any free port; send requests to the listener"
_STORE = "set it in toolsim_store, for example toolsim_store=memory?{}"

RENAMED: Mapping[str, str] = {"llm_options_defaults": "request_defaults", "preset": "profiles"}
"""The current names of renamed options, by former name."""

RENAMED_VALUES: Mapping[str, Mapping[str, str]] = {
    "history": {"record": "bracketed", "sentinel": "tagged"},
    "reasoning": {"tell": "include"},
    "second_opinion": {"invented": "undeclared"},
}
"""The current names of renamed option values, by the option's current name and the value's former name."""


RENAMED_HEADERS: Mapping[str, str] = {"x-toolsim-left-out": "x-toolsim-dropped-tools"}
"""The current names of renamed response headers, by former name."""

RENAMED_METRICS: Mapping[str, str] = {"exchanges_open": "exchanges_in_progress"}
"""The current names of renamed metrics, without the prefix, by former name."""

RENAMED_FIELDS: Mapping[str, str] = {"asked_again": "retries", "hosted_calls": "mcp_calls"}
"""The current names of renamed fields of a report (JSON log, recordings, trace attributes), by former name."""

RENAMED_CODES: Mapping[str, str] = {
    "ASKED": "APPROVAL_REQUESTED",
    "SCHEMA_UNSETTLED": "SCHEMA_CHECK_TIMED_OUT",
    "TOOL_LEFT_OUT": "TOOL_DROPPED",
}
"""The current names of renamed codes in the log and in metrics, by former name."""


def current_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded report with the current names of its fields and codes."""
    return {
        RENAMED_FIELDS.get(name, name): [_current_entry(entry) for entry in value] if isinstance(value, list) else value
        for name, value in report.items()
    }


def _current_entry(entry: Any) -> Any:
    """Return an entry of the form CODE or CODE:NAME with the code's current name."""
    if not isinstance(entry, str):
        return entry
    code, sign, name = entry.partition(":")
    return f"{RENAMED_CODES.get(code, code)}{sign}{name}"


def current_name(name: str) -> str:
    """Return the current name of an option. Both names are without the prefix ``toolsim_``."""
    return RENAMED.get(name, name)


def current_field(name: str, value: Any) -> tuple[str, Any]:
    """Return the current name and value of a policy field in a recording."""
    match name, value:
        case "max_tool_args_bytes" | "max_tool_output_bytes", _:
            return "max_tool_bytes", value
        case "fix_empty_final", bool():
            return name, "on" if value else "off"
        case "fix_empty_final_disable_tools", False:
            return "fix_empty_final", "with_tools"
    return current_name(name), current_value(current_name(name), value)


def current_value(name: str, value: Any) -> Any:
    """Return the current name of an option's value. ``name`` is the option's current name, without the prefix."""
    return RENAMED_VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value


REMOVED: Mapping[str, str] = {
    "use_tool": "set toolsim_untagged=no_use_tool if the old value was false",
    "fix_empty_final_disable_tools": "set toolsim_fix_empty_final=with_tools if the old value was false",
    "fix_empty_final_text": _CONSTANT,
    "fallback_retry_count": "set toolsim_tool_use_mode=relaxed, which retries a request without tools",
    "max_rounds_seconds": _CONSTANT,
    "responses_output_mode": "set toolsim_output_mode=obsidian-xml-responses, or obsidian-xml-both",
    "stop_after_tools_mode": "set toolsim_stop_after_tools=first, or on if the old value was burst",
    "suppress_tail_after_tools": "set toolsim_stop_after_tools=drop",
    "parallel_tool_calls": "set toolsim_tool_block_max=1 if the old value was false",
    "tool_denylist": "set toolsim_tool_allowlist=!NAME",
    "max_tool_args_bytes": "set toolsim_max_tool_bytes, which limits arguments and outputs",
    "max_tool_output_bytes": "set toolsim_max_tool_bytes, which limits arguments and outputs",
    "max_schema_bytes": _CONSTANT,
    "max_tools_bytes": _CONSTANT,
    "max_request_bytes": "set toolsim_max_body_bytes, which limits requests and answers",
    "max_answer_bytes": "set toolsim_max_body_bytes, which limits requests and answers",
    "max_event_bytes": _CONSTANT,
    "backend_port": _PORT,
    "codex_port": _PORT,
    "scripted_port": _PORT,
    "scripted_delay": _CONSTANT,
    "store_max_answers": _STORE.format("answers=100000"),
    "store_max_bytes": _STORE.format("bytes=268435456"),
    "store_max_days": _STORE.format("days=30"),
    "background_max": _STORE.format("background=16"),
    "background_event_bytes": _CONSTANT,
    "hosted_mcp": "toolsim_mcp_hosts lists the servers that requests may name; set toolsim_mcp_hosts=config to allow "
    "only the servers in toolsim_mcp_config",
    "mcp_approval_timeout": _CONSTANT,
    "mcp_timeout": "set 'timeout' for each server in the file that toolsim_mcp_config names",
    "mcp_max_calls": _CONSTANT,
}
"""Advice about the replacement of each removed option, by the option's name."""
