"""The share of a prompt that a server must process again in the next turn, for each option.

The conversation comes from a client with 20 tools. It has 40 items, including calls with their outputs, and the next
turn adds two. The rows without a goal are for changes that only the client can anticipate: a proxy sees one request,
and cannot distinguish a new tool from an old one. The required output format is described in the catalog, because few
clients change it. At the end of the prompt, it would move in each turn, and all text after its previous position would
be processed again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from bench.rewriting import history, tools
from bench.table import Row
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import rewrite_request

GROUP = "prompt"

_NAMED = {"type": "function", "function": {"name": "tool_0"}}
_ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [_NAMED]}}
OPTIONS: dict[str, Policy] = {
    "nothing set": Policy(),
    **{f"manifest={form}": Policy(manifest=form) for form in ("schemas", "hermes", "typescript")},
    "manifest_role=user": Policy(manifest_role="user"),
    "history=bracketed": Policy(history="bracketed"),
    "catalog_budget": Policy(catalog_budget=500),
    "tool_use_mode=enforced": Policy(tool_use_mode="enforced"),
    "tool_use_mode=disabled": Policy(tool_use_mode="disabled"),
    "tool_allowlist": Policy(tool_allowlist=frozenset({"tool_0", "tool_1"})),
    "tool_block_max=1": Policy(tool_block_max=1, parallel_tool_calls=False),
    "transforms": Policy(transforms=frozenset({"openai_tools_strip_function_descriptions"})),
    "max_tool_bytes": Policy(max_tool_bytes=10),
}
ROUNDS: dict[str, tuple[Policy, Policy]] = {
    "then a round without tools": (Policy(), Policy(tool_use_mode="withheld")),
    "then a round without look-ups": (OPTIONS["catalog_budget"], Policy(catalog_budget=500, may_look_up=False)),
}
CHOICES = {"auto": "auto", "required": "required", "none": "none", "named": _NAMED, "allowed": _ALLOWED}
_FIELDS = {"answer": {"type": "string", "description": "What to tell the user"}, "sure": {"type": "boolean"}}
_SCHEMA = {"type": "object", "properties": _FIELDS, "required": list(_FIELDS), "additionalProperties": False}
_FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}}}
_FURTHER = {"type": "additional_tools", "tools": tools(21, 0)[20:]}


def prompt(item_count: int, policy: Policy, choice: Any = "auto", **fields: Any) -> str:
    """Return the entire text that the model reads."""
    body = {"model": "m", "messages": history(item_count, 0), "tools": tools(20, 0), "tool_choice": choice, **fields}
    return _read("chat", body, policy)


def as_responses(item_count: int, *more: dict[str, Any], **fields: Any) -> str:
    """Return the text that the model reads in a Responses API conversation; ``more``: items to append."""
    items: list[dict[str, Any]] = []
    for message in history(item_count, 0):
        calls = message.get("tool_calls", ())
        items += ({"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls)
        if message["role"] == "tool":
            answered = {"call_id": message["tool_call_id"], "output": message["content"]}
            items.append({"type": "function_call_output", **answered})
        elif message["content"]:
            items.append(message)
    return _read("responses", {"model": "m", "input": [*items, *more], "tools": tools(20, 0), **fields}, Policy())


def _read(api: Any, body: dict[str, Any], policy: Policy) -> str:
    written = rewrite_request(api, "/v1", json.dumps(body).encode(), policy, output_mode=None, report=Report())
    assert written is not None
    sent = json.loads(written.body)
    messages = sent.get("messages") or sent["input"]
    return "".join(f"\0{message['role']}\0{_text(message['content'])}" for message in messages)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\0".join(part["text"] for part in content)


def measure(quick: bool) -> Iterator[Row]:
    """Yield the share of the previous prompt that must be processed again, for each option and each change by the
    client.
    """
    for name, policy in OPTIONS.items():
        yield _row(name, prompt(40, policy), prompt(42, policy))
    for name, (first, second) in ROUNDS.items():
        yield _row(name, prompt(40, first), prompt(42, second))
    for one, two in pairwise(["auto", "required", "auto", "none", "named", "allowed", "auto"]):
        before, after = prompt(40, Policy(), CHOICES[one]), prompt(42, Policy(), CHOICES[two])
        yield _row(f"tool_choice: {one}, then {two}", before, after)
    plain = prompt(40, Policy())
    yield _row("parallel_tool_calls: true, then false", plain, prompt(42, Policy(), parallel_tool_calls=False))
    yield _row("a format of the answer", prompt(40, Policy(), **_FORMAT), prompt(42, Policy(), **_FORMAT))
    yield _row("a format of the answer, new", plain, prompt(42, Policy(), **_FORMAT), goal=None)
    yield _row("one more tool", plain, prompt(42, Policy(), tools=tools(21, 0)), goal=None)
    before = as_responses(40)
    yield _row("one more tool, by additional_tools", before, as_responses(40, _FURTHER, history(42, 0)[-1]))
    yield _row("a summary (compaction_trigger)", before, as_responses(40, {"type": "compaction_trigger"}))


def _row(name: str, before: str, after: str, goal: float | None = 1.0) -> Row:
    size = len(before)
    kept = next((at for at, (one, two) in enumerate(zip(before, after, strict=False)) if one != two), size)
    return Row(GROUP, name, 100 * (size - kept) / size, "% again", goal, note=f"{100 * kept / size:.2f} % survives")
