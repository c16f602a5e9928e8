"""The environment variables of toolsim's predecessor: each gives an option another default.

They are read tolerantly, as the predecessor read them: in any case, and a truth value in any of the usual words. One
that makes no sense is ignored, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from toolsimlib.plan import OUTPUT_MODES
from toolsimlib.proxy.options.option import Value

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


def from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Value], list[str]]:
    """Return the defaults that the environment gives, by the names of options, and a warning for each bad variable."""
    given: dict[str, str | int | bool] = {}
    warnings = []
    for name, read in VARIABLES.items():
        # A delimiter may be whitespace.
        word = environment.get(name, "").strip("\r\n" if read is str else None)
        if not word:
            continue
        try:
            given[name.removeprefix("PROXY_")] = read(word)
        except ValueError as problem:
            warnings.append(f"{name}={environment[name]!r} is ignored: {problem}")
    return _defaults(given), warnings


def _defaults(given: Mapping[str, str | int | bool]) -> dict[str, Value]:
    """Return what the variables mean together: some options have replaced several of them."""
    defaults: dict[str, Value] = {}
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
