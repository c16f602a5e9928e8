"""Options that are valid one by one and useless together: the start says so, instead of one of them doing nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_DEMANDED = ("json_schema", "gbnf", "structural_tag")

# What is useless, by the options as they were parsed, and what to do about it.
USELESS: tuple[tuple[Callable[[Mapping[str, Any]], bool], str], ...] = (
    (
        lambda given: bool(_names(given)) and _names(given) <= _excluded(given),
        "toolsim_tool_allowlist: every tool that it names is excluded by it too, so none would be on offer.",
    ),
    (
        lambda given: given["tool_use_mode"] == "disabled" and bool(given["tool_allowlist"]),
        "toolsim_tool_allowlist decides nothing with toolsim_tool_use_mode=disabled, which offers no tool.",
    ),
    (
        lambda given: given["second_opinion"] == "on" and given["tool_use_mode"] in ("enforced", "disabled"),
        "toolsim_second_opinion=on asks about calls that a model makes of its own accord, and toolsim_tool_use_mode "
        "leaves none.",
    ),
    (
        lambda given: bool(given["retry"]) and given["max_rounds"] == 1,
        "toolsim_retry needs a second turn of the model: set toolsim_max_rounds to 2 or more.",
    ),
    (
        lambda given: bool(given["catalog_budget"]) and given["max_rounds"] == 1,
        "toolsim_catalog_budget needs a second turn of the model, in which it looks up tools: set toolsim_max_rounds "
        "to 2 or more.",
    ),
    (
        lambda given: bool(given["catalog_budget"]) and given["mode"] == "native",
        "toolsim_catalog_budget shortens our own catalogue of tools, which toolsim_mode=native does not write.",
    ),
    (
        lambda given: given["constrain"] in _DEMANDED and given["mode"] == "native",
        "toolsim_constrain has the backend enforce our form of calls, which toolsim_mode=native does not use.",
    ),
    (
        lambda given: given["model"] is not None and given["backend"] != "local",
        "toolsim_model is the file that toolsim_backend=local runs, and the backend is another one.",
    ),
)


def useless(given: Mapping[str, Any]) -> str:
    """Return why options are useless together, "" if they are not; ``given``: all of them, parsed, by short name."""
    return next((message for is_useless, message in USELESS if is_useless(given)), "")


def _names(given: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name in given["tool_allowlist"] if not name.startswith("!"))


def _excluded(given: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name[1:] for name in given["tool_allowlist"] if name.startswith("!"))
