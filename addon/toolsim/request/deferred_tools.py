"""Shortens a manifest with many tools to their names, so that the model looks up the tools that it needs.

128 tools add more than 12,000 tokens to every question, and a small model cannot find the right tool among them. If the
entries exceed ``catalog_budget`` characters, the manifest therefore shows only the name of each tool and the first line
of its description. An additional tool, ``find_tools``, returns the entries of the tools that its arguments name.
toolsim itself runs ``find_tools``: a call to it ends a round (``response/retry.py``), and the next round starts with
the entries (``rounds/round_planner.py``). The client does not see these calls.

1. The manifest depends only on the tools and the budget, so it is identical in all requests.
2. If a tool was called earlier in the conversation, its entry is shown at the point of that call
   (``prompt_suffix.py``), because the tool is likely to be called again, and earlier lookups are not part of the
   conversation. The entries of all offered tools are shown at the end of the prompt if no further round is allowed or
   these entries fit the budget.
3. The model can call every tool, even before it has looked up the tool. If the call matches the tool's schema, it
   counts. Otherwise, it counts as the first lookup (``response/judge.py``), because Qwen2.5-Coder-0.5B never looks up
   tools that it sees only by name, but guesses their arguments.
4. If the client has only one tool, or a tool with the name ``find_tools``, the manifest is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from toolsim.core.plan import FIND_TOOLS, Tool
from toolsim.core.policy import Policy
from toolsim.request.forms import entries, form_named
from toolsim.request.transforms import tools_shown
from toolsim.wire.json_codec import value_line
from toolsim.wire.json_fields import array

# The kind is not "function", for two reasons: a call to this tool that does not match the schema remains text, and the
# client never sees the beginning of a call.
FINDER = Tool(
    FIND_TOOLS,
    FIND_TOOLS,
    kind="tool_search",
    description="Look up how to call tools of which only the name is listed.",
    parameters={
        "type": "object",
        "properties": {"names": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
        "required": ["names"],
    },
)

INTRO = "These are further tools, of which only the names are listed. Before you call one, look it up by {finder}:"

_MAX_LINE = 100
"""Maximum length, in characters, of the description that follows a tool's name."""
_MAX_LOOKUPS = 64
"""Maximum number of names that one call can look up."""


def names_only(tools: tuple[Tool, ...], policy: Policy) -> frozenset[str]:
    """Return the names of the ``tools`` that the manifest shows only by name, or no names if the manifest is
    complete.
    """
    budget = policy.catalog_budget
    if not budget or len(tools) < 2 or any(tool.name == FIND_TOOLS for tool in tools):
        return frozenset()
    transformed = tools_shown(tools, policy.transforms)
    if len(entries(transformed, form_named(policy.manifest).entry, policy.sentinel)) <= budget:
        return frozenset()
    return frozenset(tool.name for tool in tools)


def name_lines(tools: Iterable[Tool]) -> str:
    """Return one line per tool with its name and the first line of its description."""
    return "\n".join(f"- {tool.name}{_first_line(tool)}" for tool in tools)


def found_tools(tools: tuple[Tool, ...], arguments: str, policy: Policy) -> str:
    """Return the output of a call to ``find_tools``: the entries of the tools that ``arguments`` names.

    ``tools`` are the offered tools. The output contains as many entries as fit the budget, but at least one.
    """
    shape = form_named(policy.manifest)
    by_name = {tool.name: tool for tool in tools_shown(tools, policy.transforms)}
    folded = {name.casefold(): name for name in by_name}
    found: list[str] = []
    missing: list[str] = []
    omitted: list[str] = []
    size = 0
    for name in dict.fromkeys(_names(arguments)[:_MAX_LOOKUPS]):
        tool = by_name.get(name) or by_name.get(folded.get(name.casefold(), ""))
        if tool is None:
            missing.append(name)
            continue
        entry = shape.entry(tool, policy.sentinel)
        size += len(entry)
        if found and size > policy.catalog_budget:
            omitted.append(tool.name)
        else:
            found.append(entry)
    parts = []
    if found:
        parts.append("\n".join(["These are the tools that you looked up:", *found]))
    if omitted:
        parts.append(f"Too many at once, look these up next: {', '.join(omitted)}.")
    if missing:
        parts.append(f"There is no tool {value_line(', '.join(missing)[:_MAX_LINE])}; the catalog lists all names.")
    parts.append("Go on now: call what the user's request needs, or answer it.")
    return "\n\n".join(parts)


def _names(arguments: str) -> list[str]:
    """Return the tool names in the arguments of a call to ``find_tools``. The arguments must be a JSON object."""
    names = json.loads(arguments).get("names")
    return [name for name in array(names) if isinstance(name, str)]


def _first_line(tool: Tool) -> str:
    words = " ".join((tool.description or "").split("\n", 1)[0].split())
    if len(words) > _MAX_LINE:
        words = f"{words[: _MAX_LINE - 1]}…"
    return f": {words}" if words else ""
