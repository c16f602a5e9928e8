"""Presents the functions of a BFCL case as tools, or in BFCL's default prompt, and parses the answers to the prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from toolsim.eval import bfcl_package
from toolsim.eval.runtime.turn import Call, Message, Tool


@dataclass(frozen=True, slots=True)
class BfclPrompt:
    """The PromptForm of one case. BFCL's default prompt describes the functions.

    An earlier call is written in the prompt's format, ``[name(key=value)]``. The outputs of a step become one message.
    """

    entry: bfcl_package.Entry

    def write(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """Return the messages with BFCL's default system prompt. Earlier calls and outputs are written as text."""
        return bfcl_package.prompted(_as_text(messages), self.entry)

    def read(self, text: str) -> tuple[str, tuple[Call, ...]]:
        """Return the prose or the calls in text. BFCL's parser does not accept text that contains both."""
        try:
            decoded = bfcl_package.read_prompted(text)
            calls = [(name, json.dumps(arguments)) for call in decoded for name, arguments in call.items()]
        except (bfcl_package.Unreadable, TypeError, ValueError):  # Some Python values cannot be converted to JSON.
            return text, ()
        return "", tuple(Call(f"call_{number}", name, arguments) for number, (name, arguments) in enumerate(calls))


def tools_of(entry: bfcl_package.Entry) -> tuple[Tool, ...]:
    """Return the functions of an entry as tools, for the methods that offer tools."""
    declared = bfcl_package.tool_declarations(entry["function"])
    return tuple(Tool(tool["name"], tool.get("description", ""), tool["parameters"]) for tool in declared)


def _as_text(messages: Iterable[Message]) -> list[Message]:
    shown: list[Message] = []
    lines: dict[str, str] = {}
    outputs: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            line = lines.get(message["tool_call_id"], "")
            outputs.append({"role": "tool", "name": line, "content": message["content"]})
            continue
        if outputs:
            shown.append({"role": "user", "content": repr(outputs)})
            outputs = []
        calls = message.get("tool_calls") or []
        if calls:
            lines |= {call["id"]: _line(call["function"]) for call in calls}
            written = ", ".join(lines[call["id"]] for call in calls)
            shown.append({"role": message["role"], "content": f"[{written}]"})
        else:
            shown.append(message)
    if outputs:
        shown.append({"role": "user", "content": repr(outputs)})
    return shown


def _line(function: Any) -> str:
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        arguments = {}
    return f"{function['name']}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
