"""The share of a prompt that a server reads again in the next turn, whatever is set.

The conversation is that of a client which answers calls, with 20 tools and 40 items; the turn after it has two more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from bench.rewriting import history, tools
from bench.table import Row
from toolsimlib.plan import Policy
from toolsimlib.report import Report
from toolsimlib.request.rewrite import rewrite_request

GROUP = "prompt"

_NAMED = {"type": "function", "function": {"name": "tool_0"}}
_ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [_NAMED]}}
OPTIONS: dict[str, Policy] = {
    "nothing set": Policy(),
    **{f"manifest={form}": Policy(manifest=form) for form in ("schemas", "hermes", "typescript")},
    "manifest_role=user": Policy(manifest_role="user"),
    "history=record": Policy(history="record"),
    "catalog_budget": Policy(catalog_budget=500),
    "tool_use_mode=enforced": Policy(tool_use_mode="enforced"),
    "tool_use_mode=disabled": Policy(tool_use_mode="disabled"),
    "tool_allowlist": Policy(tool_allowlist=frozenset({"tool_0", "tool_1"})),
    "transforms": Policy(transforms=frozenset({"openai_tools_strip_function_descriptions"})),
    "max_tool_bytes": Policy(max_tool_output_bytes=10),
}
ROUNDS: dict[str, tuple[Policy, Policy]] = {
    "then a round without tools": (Policy(), Policy(tool_use_mode="withheld")),
    "then a round without look-ups": (OPTIONS["catalog_budget"], Policy(catalog_budget=500, may_look_up=False)),
}
CHOICES = {"auto": "auto", "required": "required", "none": "none", "named": _NAMED, "allowed": _ALLOWED}


def prompt(item_count: int, policy: Policy, choice: Any = "auto") -> str:
    """Return all that the model reads."""
    body = {"model": "m", "messages": history(item_count, 0), "tools": tools(20, 0), "tool_choice": choice}
    written = rewrite_request("chat", "/v1", json.dumps(body).encode(), policy, output_mode=None, report=Report())
    assert written is not None
    return "".join(f"\0{message['role']}\0{message['content']}" for message in json.loads(written.body)["messages"])


def measure(quick: bool) -> Iterator[Row]:
    """Yield the share of the prompt before that is read again, for each option and each change of the choice."""
    for name, policy in OPTIONS.items():
        yield _row(name, prompt(40, policy), prompt(42, policy))
    for name, (first, second) in ROUNDS.items():
        yield _row(name, prompt(40, first), prompt(42, second))
    for one, two in pairwise(["auto", "required", "auto", "none", "named", "allowed", "auto"]):
        before, after = prompt(40, Policy(), CHOICES[one]), prompt(42, Policy(), CHOICES[two])
        yield _row(f"tool_choice: {one}, then {two}", before, after)


def _row(name: str, before: str, after: str) -> Row:
    size = len(before)
    kept = next((at for at, (one, two) in enumerate(zip(before, after, strict=False)) if one != two), size)
    return Row(GROUP, name, 100 * (size - kept) / size, "% again", 1.0, note=f"{100 * kept / size:.2f} % survives")
