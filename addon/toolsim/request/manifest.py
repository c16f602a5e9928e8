"""Writes the manifest, which describes the tools to a model as text.

The manifest consists of a heading, the entries and the rule for making calls, in the wording and notation of the chosen
form (``forms.py``). Further instructions for a request are at the end of its prompt (``prompt_suffix.py``). Some
gateways mistake a prompt with the phrases "output format", "concise title" or "conversation:" for one of their own
utility requests, so the manifest avoids these phrases. Text that the client controls (descriptions, grammars) is
indented, in a comment or inside JSON, so that it cannot be mistaken for a tool or a rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from toolsim.core.plan import FIND_TOOLS, Tool
from toolsim.request.deferred_tools import INTRO, name_lines
from toolsim.request.example import example_arguments
from toolsim.request.forms import CLOSING, entries, form_named, schema_line
from toolsim.request.record import sentinel_block
from toolsim.wire.json_codec import value_line

HEADING = "# CLIENT TOOL CATALOG"

FURTHER = "Tools of the client tool catalog, and how to call them:"
"""The heading of entries that are shown outside the manifest."""

ANSWER_RULE = "An answer that calls no tool must be "
"""The beginning of the rule about the format of an answer without calls."""

WHOLE_ANSWER_RULE = "Your answer must be "
"""The beginning of the rule about the answer's format in a request without tools."""


def manifest(
    tools: Sequence[Tool],
    *,
    sentinel: str,
    answer_format: Mapping[str, Any] | None,
    form: str = "auto",
    named: Collection[str] = (),
    finder: str = FIND_TOOLS,
) -> str:
    """Return the manifest of ``tools`` (at least one), with the rule for calling them.

    ``form`` is a name in ``forms.FORMS``, or auto. ``answer_format`` is the required format of an answer without calls,
    in the flat shape of ``text.format``. The manifest requests this format, because a backend that enforced it would
    prevent calls. ``named`` contains the names of tools listed only by name, and ``finder`` is the name of the tool for
    looking them up.
    """
    shape = form_named(form)
    whole = [tool for tool in tools if tool.name not in named] if named else tools
    catalog = "\n".join(filter(None, [shape.intro, entries(whole, shape.entry, sentinel), shape.outro]))
    example = _example(whole[0], sentinel) if "{example}" in shape.rule else ""
    rule = shape.rule.format(tag=sentinel, example=example)
    further = " ".join(filter(None, [shape.several, _strict_rule(tools), CLOSING]))
    sections = [
        HEADING,
        catalog,
        f"{INTRO.format(finder=finder)}\n{name_lines(tool for tool in tools if tool.name in named)}" if named else "",
        f"{rule}{'\n\n' if '\n' in rule else ' '}{further}",
        _answer_rule(answer_format) if answer_format is not None else "",
    ]
    return "\n\n".join(filter(None, sections))


def further_entries(tools: Sequence[Tool], *, sentinel: str, form: str = "auto") -> str:
    """Return the entries of ``tools`` that the manifest does not show, for use elsewhere in the prompt."""
    return f"{FURTHER}\n{entries(tools, form_named(form).entry, sentinel)}"


def _example(tool: Tool, sentinel: str) -> str:
    return sentinel_block(tool.name, value_line(example_arguments(tool.shown_parameters)), sentinel)


def _strict_rule(tools: Sequence[Tool]) -> str:
    strict = [tool.name for tool in tools if tool.strict]
    if not strict:
        return ""
    return (
        f"For {', '.join(strict)} the arguments MUST conform exactly: every required property, no property that is not"
        " shown, each value of its type."
    )


def whole_answer_rule(answer_format: Mapping[str, Any]) -> str:
    """Return the rule about the answer's format for a request without tools. See ``manifest`` for ``answer_format``."""
    return _answer_rule(answer_format, WHOLE_ANSWER_RULE)


def _answer_rule(answer_format: Mapping[str, Any], beginning: str = ANSWER_RULE) -> str:
    schema = answer_format.get("schema")
    kind = schema.get("type", "object") if isinstance(schema, dict) else "object"
    rule = f"{beginning}one JSON {kind if kind in ('object', 'array') else 'value'} and nothing else"
    rule += ", without a code fence"
    if not isinstance(schema, dict):
        return f"{rule}."
    return f"{rule}, and it MUST conform exactly to this schema:\n{schema_line(schema)}"
