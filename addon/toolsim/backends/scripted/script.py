"""Generates the answers of the scripted model, as text.

Like any text-only model, the scripted model sees only messages. The messages contain the tools in a manifest, and
earlier calls and outputs in text form. If outputs have arrived since its last answer, it answers in prose and quotes
the outputs. Otherwise, it writes a sentence to the user and then calls the tools that the question requires
(``tool_selection``, ``argument_extraction``). If no tool fits, it explains which questions work.

A stage direction in the question (a word in square brackets) makes the scripted model imitate a faulty model or server:
"What is the weather in Bonn? [malformed]". ``DIRECTIONS`` lists all stage directions. This module implements the broken
calls, and the backend implements the other directions. If toolsim retries a broken call (``rounds/``), the scripted
model writes the call correctly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from toolsim.backends.scripted.argument_extraction import fill, unanswered
from toolsim.backends.scripted.tool_selection import choose
from toolsim.core.conversation import ClientRequest, Message, Text
from toolsim.core.plan import Tool, ToolChoice
from toolsim.pages.read_prompt import (
    Catalog,
    find_catalog,
    find_further,
    is_error_record,
    read_call_record,
    read_choice,
    read_output_record,
    wanted,
)
from toolsim.request.record import sentinel_block
from toolsim.wire.json_codec import value_line
from toolsim.wire.json_fields import mapping

DIRECTIONS = {
    "string": "arguments as a JSON string instead of an object",
    "empty": "no arguments",
    "badly": "arguments that violate the schema",
    "malformed": "arguments with truncated JSON",
    "unknown": "a call to a tool that does not exist",
    "slow": "a model that thinks for a long time and answers slowly",
    "429": "a server that has received too many requests",
    "cut": "a server that disconnects in the middle of an answer",
}
"""The effect of each stage direction."""

MAX_QUOTE_CHARS = 300
# Maximum number of characters of a question that are used. Each word of the question is compared with every word of
# every tool, which blocks the event loop.
MAX_QUESTION_CHARS = 500

_DIRECTION = re.compile(rf"\[({'|'.join(DIRECTIONS)})\]", re.IGNORECASE)
_OPENING = re.compile(r"<([A-Za-z][\w-]*)>\s*")
_CLOSING = re.compile(r"\s*</([A-Za-z][\w-]*)>\s*")
_SIGNATURE = "(This is toolsim's scripted model, not a real model.)"


def messages_of(request: ClientRequest) -> list[Message]:
    """Return the parts of a request that a text-only model sees: the instructions and the messages."""
    instructions = [Message("system", (Text(request.instructions),))] if request.instructions else []
    return instructions + [item for item in request.items if isinstance(item, Message)]


def direction(messages: Sequence[Message]) -> str | None:
    """Return the question's stage direction, or None if there is none. In a retry, the stage direction is ignored."""
    if len(_asked_first(messages)) < len(messages):
        return None
    found = _DIRECTION.search(question_of(messages))
    return found[1].lower() if found else None


def reply(messages: Sequence[Message]) -> str:
    """Return the complete text of the answer, including call blocks."""
    if outputs := outputs_of(messages):
        return f"The tool answered: {'; '.join(outputs)[:MAX_QUOTE_CHARS]} {_SIGNATURE}"
    played = direction(messages)
    messages = _asked_first(messages)
    question = question_of(messages)
    question = _DIRECTION.sub("", question).strip()[:MAX_QUESTION_CHARS]
    catalog = next(filter(None, (find_catalog(message.text) for message in messages)), None)
    choice = read_choice(wanted(messages)) or ToolChoice()
    tools = _tools(messages, catalog, choice) if catalog is not None else ()
    if catalog is None or not tools:
        return f"Hello! I was offered no tools, so I cannot do anything else. {_SIGNATURE}"
    is_forced = choice.mode == "required"
    parts = choose(question, tools, forced=is_forced)
    if not parts:
        names = ", ".join(tool.name for tool in tools)
        return f"Hello! I call a tool when your question contains the words of its name ({names}). {_SIGNATURE}"
    for tool, part in parts:
        if not is_forced and (name := unanswered(tool, part)):
            return f"I would call {tool.name}, but what is the {name}? {_SIGNATURE}"
    calls = [(tool, arguments) for tool, part in parts for arguments in fill(tool, part)]
    names = " and ".join(dict.fromkeys(tool.name for tool, _ in calls))
    blocks = [_block(tool, arguments, catalog, played) for tool, arguments in calls]
    return f"Let me ask {names}.\n" + "\n".join(blocks)


def _tools(messages: Sequence[Message], catalog: Catalog, choice: ToolChoice) -> tuple[Tool, ...]:
    """Return the tools that the tool choice allows, from the manifest and from later messages."""
    if choice.mode == "none":
        return ()
    further = filter(None, (find_further(message.text) for message in messages if message.role == "user"))
    tools = {tool.name: tool for found in (catalog, *further) for tool in found.tools}
    return tuple(tool for name, tool in tools.items() if choice.names is None or name in choice.names)


def _asked_first(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the conversation without the broken calls and the error messages that toolsim added for retries."""
    while len(messages) > 1 and is_error_record(messages[-1].text.partition("\n")[0]):
        messages = messages[:-2]
    return messages


def question_of(messages: Sequence[Message]) -> str:
    """Return the user's text since the last answer.

    The context from agent programs and all text from toolsim (such as the manifest) are left out.
    """
    spoken = [index for index, message in enumerate(messages) if message.role == "assistant"]
    since = messages[spoken[-1] + 1 :] if spoken else messages
    return "\n".join(_words_of(message.text) for message in since if message.role == "user").strip()


def _without_context(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines that are not inside an element whose opening and closing tags are on separate lines.

    Agents send context in such elements.
    """
    ends = {found[1]: place for place, line in enumerate(lines) if (found := _CLOSING.fullmatch(line))}
    end = -1
    for place, line in enumerate(lines):
        if place > end and (found := _OPENING.fullmatch(line)):
            end = max(end, ends.get(found[1], -1))
        if place > end:
            yield line


def _words_of(text: str) -> str:
    for find in (find_catalog, find_further):
        if found := find(text):
            text = text[: found.start] + text[found.end :]
    return "\n".join(line for line in _without_context(text.splitlines()) if not _is_ours(line))


def _is_ours(line: str) -> bool:
    """Return whether toolsim wrote a line: the record of a call or output, or the tool choice in a prompt."""
    return bool(read_call_record(line) or read_output_record(line)) or read_choice(line) is not None


def outputs_of(messages: Sequence[Message]) -> list[str]:
    """Return the tool outputs since the last answer."""
    outputs: list[str] = []
    for message in reversed(messages):
        if message.role == "assistant":
            break
        if message.role == "user":
            records = (read_output_record(line) for line in message.text.splitlines())
            outputs[:0] = [_readable(record[1]) for record in records if record]
    return outputs


def _readable(output: str) -> str:
    """Return an output in a readable form, with each ``<`` replaced. Otherwise, quoting it could result in a call."""
    value = json.loads(output)
    return (value if isinstance(value, str) else output).replace("<", "‹")


def _block(tool: Tool, arguments: dict[str, Any], catalog: Catalog, played: str | None) -> str:
    text = value_line(arguments)
    match played:
        case "string":
            text = value_line(text)
        case "empty":
            text = '""'
        case "badly":
            text = value_line(_misfit(tool, arguments))
        case "malformed":
            text = text.removesuffix("}")
        case "unknown":
            return sentinel_block(f"{tool.name}_of_another_client", text, catalog.tag)
    return sentinel_block(tool.name, text, catalog.tag)


def _misfit(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that all have values of the wrong type."""
    names = list(arguments or mapping(mapping(tool.parameters).get("properties")))
    return {name: "badly" if isinstance(arguments.get(name), int | float | bool) else 0 for name in names}
