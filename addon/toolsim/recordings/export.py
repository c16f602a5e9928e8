"""``toolsim export DIR --form FORM``, which exports recorded turns as training data, one JSON line per turn.

1. Only turns without faults are exported: toolsim reported no problem, and each call matches its tool's schema.
2. Secrets are removed by the rules for recordings. Words are replaced with pseudonyms. Each word has the same pseudonym
   in all turns, so that a call still repeats the words of the user's question.
3. A manifest is written next to the exported file. It lists the recording for each line, and the reason why each of the
   other recordings was omitted. The manifest contains no content from the recordings.

A line contains the conversation up to and including the recorded answer, so lines from the same conversation overlap.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolsim.command_line import Parser, UsageError
from toolsim.core.conversation import Call, CallOutput, Declaration, Message, Part, Text, Thought
from toolsim.core.plan import Tool
from toolsim.core.report import code_of
from toolsim.recordings.agreement import compare
from toolsim.recordings.pseudonymise import Pseudonyms, names_in
from toolsim.recordings.stored import flow_files
from toolsim.recordings.turns import RecordedTurn, Reply, Unusable, read_turn
from toolsim.version import __version__

# Fields of a report that list faults, with a description of each fault.
_FAULTS = {
    "parse_failures": "a call could not be parsed",
    "strict_failures": "a call violated a strict schema",
    "mismatches": "a call violated its schema",
    "dropped_calls": "a call was dropped",
    "truncated": "the answer is truncated",
}


@dataclass(slots=True)
class Step:
    """One message, independent of any API."""

    role: str
    text: str = ""
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    """The ID, tool name and parsed arguments of each call."""
    call_id: str = ""
    """The ID of the call whose output the message contains."""
    name: str = ""


def fault(turn: RecordedTurn) -> str:
    """Return why a turn is unsuitable as training data, or "" if it is suitable."""
    if not turn.tools:
        return "no tool was on offer"
    if not turn.report:
        return "toolsim forwarded the answer without checking it"
    if turn.report.get("finish") == "length":
        return "the answer was cut off by the token limit"
    if found := next((words for name, words in _FAULTS.items() if turn.report.get(name)), ""):
        return found
    found_again = compare(turn.reply, turn.reply, turn.tools)
    if found_again.outcome == "none":
        return "the answer is empty"
    if found_again.outcome != "same":
        return "a call does not match its tool's schema"
    return (
        f"the answer has the warning {code_of(str(warnings[0]))}" if (warnings := turn.report.get("warnings")) else ""
    )


def with_pseudonyms(turn: RecordedTurn, key: bytes) -> RecordedTurn:
    """Return a turn whose words are replaced with pseudonyms.

    Raises Unusable if the resulting request cannot be parsed.
    """
    words = Pseudonyms([*names_in(turn.body), *(call.name for call in turn.reply.calls)], key)
    body = words.value(turn.body)
    calls = tuple(replace(call, arguments=words.text(call.arguments)) for call in turn.reply.calls)
    return turn.with_content(body, Reply(words.text(turn.reply.text), calls))


def steps(turn: RecordedTurn) -> list[Step]:
    """Return the conversation's messages, followed by the recorded answer.

    Raises Unusable if a message contains anything other than text, calls and tool outputs.
    """
    tools = {tool.name: tool for tool in turn.tools}
    ids: dict[str, tuple[str, str]] = {}
    found = [Step("system", turn.request.instructions)] if turn.request.instructions else []

    def assistant() -> Step:
        if not found or found[-1].role != "assistant":
            found.append(Step("assistant"))
        return found[-1]

    def add_call(call_id: str, name: str, arguments: str) -> None:
        number = f"call_{len(ids) + 1}"
        ids[call_id] = number, name
        assistant().calls.append((number, name, _arguments(tools.get(name), arguments)))

    for item in turn.request.items:
        match item:
            case Message(role="assistant"):
                step = assistant()
                step.text = "\n".join(filter(None, (step.text, _text(item.parts))))
            case Message():
                role = "system" if item.role == "developer" else item.role
                found.append(Step(role, _text(item.parts)))
            case Call():
                add_call(item.call_id, item.name, item.arguments)
            case CallOutput():
                if item.call_id not in ids:
                    raise Unusable("a tool output has no matching call")
                call_id, name = ids[item.call_id]
                found.append(Step("tool", _text(item.parts), call_id=call_id, name=name))
            case Thought() | Declaration():
                continue
            case _:
                raise Unusable("the turn contains items of tools that the backend ran")
    # The answer is a separate message, even if the client prefilled the beginning of the answer.
    found.append(Step("assistant", turn.reply.text))
    for number, call in enumerate(turn.reply.calls):
        add_call(f"reply {number}", call.name, call.arguments)
    return found


def _text(parts: Sequence[Part]) -> str:
    if not all(isinstance(part, Text) for part in parts):
        raise Unusable("the turn contains images or files")
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def _arguments(tool: Tool | None, arguments: str) -> Any:
    if tool is not None and tool.kind == "custom":
        return {"input": arguments}
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        raise Unusable("the arguments of an earlier call are not JSON") from None
    if not isinstance(value, dict):
        raise Unusable("the arguments of an earlier call are not an object")
    return value


# -- the formats --


def openai_form(found: Sequence[Step], tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the line for a turn in OpenAI's fine-tuning format, with the messages and tools of a chat completions
    request.
    """
    messages: list[dict[str, Any]] = []
    for step in found:
        message: dict[str, Any] = {"role": step.role, "content": step.text}
        if step.calls:
            message["content"] = step.text or None
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": _dump(arguments)}}
                for call_id, name, arguments in step.calls
            ]
        if step.role == "tool":
            message["tool_call_id"] = step.call_id
        messages.append(message)
    return {"messages": messages, "tools": [{"type": "function", "function": _function(tool)} for tool in tools]}


def messages_form(found: Sequence[Step], tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the line for a turn in the format of the Messages API. Roles alternate, and calls and outputs are content
    blocks.
    """
    messages: list[dict[str, Any]] = []
    for step in found:
        if step.role == "system":
            continue
        blocks: list[dict[str, Any]] = []
        if step.role == "tool":
            blocks.append({"type": "tool_result", "tool_use_id": step.call_id, "content": step.text})
        elif step.text:
            blocks.append({"type": "text", "text": step.text})
        blocks += [
            {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
            for call_id, name, arguments in step.calls
        ]
        role = "assistant" if step.role == "assistant" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    declared = [
        {
            "name": tool.name,
            **({"description": tool.description} if tool.description else {}),
            "input_schema": tool.shown_parameters,
        }
        for tool in tools
    ]
    system = "\n\n".join(step.text for step in found if step.role == "system")
    return {**({"system": system} if system else {}), "messages": messages, "tools": declared}


def hermes_form(found: Sequence[Step], tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the line for a turn in the format of the Hermes data sets: a conversation as text that begins with the
    tools.
    """
    declared = "\n".join(_dump({"type": "function", "function": _function(tool)}) for tool in tools)
    rules = (
        f"You can call these functions:\n<tools>\n{declared}\n</tools>\n"
        'Write a call as <tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call>.'
    )
    system = "\n\n".join([*(step.text for step in found if step.role == "system"), rules])
    values = [{"from": "system", "value": system}]
    for step in found:
        match step.role:
            case "user":
                values.append({"from": "human", "value": step.text})
            case "assistant":
                calls = [
                    f"<tool_call>\n{_dump({'name': name, 'arguments': arguments})}\n</tool_call>"
                    for _, name, arguments in step.calls
                ]
                values.append({"from": "gpt", "value": "\n".join(filter(None, (step.text, *calls)))})
            case "tool":
                content = _dump({"name": step.name, "content": step.text})
                block = f"<tool_response>\n{content}\n</tool_response>"
                if values[-1]["from"] == "tool":
                    values[-1]["value"] += f"\n{block}"
                else:
                    values.append({"from": "tool", "value": block})
    return {"conversations": values}


FORMS: Mapping[str, Callable[[Sequence[Step], Sequence[Tool]], dict[str, Any]]] = {
    "openai": openai_form,
    "messages": messages_form,
    "hermes": hermes_form,
}


def _function(tool: Tool) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    strict = {"strict": True} if tool.strict else {}
    return {"name": tool.name, **described, "parameters": tool.shown_parameters, **strict}


def _dump(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # Some programs treat these characters as line breaks, too.
    return text.translate({code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)})


# -- the command --


def export(files: Sequence[Path], form: str, *, keeps_words: bool) -> tuple[list[str], dict[str, Any]]:
    """Return the lines of the exported file, and the text of the manifest."""
    key = secrets.token_bytes(16)
    lines: dict[str, str] = {}
    left_out: list[dict[str, str]] = []
    for file in files:
        try:
            turn = read_turn(file, is_cleaned=True)
            if reason := fault(turn):
                raise Unusable(reason)
            if not keeps_words:
                turn = with_pseudonyms(turn, key)
            line = _dump(FORMS[form](steps(turn), turn.tools))
            if line in lines:
                raise Unusable("the turn duplicates another recording")
            lines[line] = file.name
        except Unusable as reason:
            # The text after a colon is omitted, because it might be a quotation from the recording.
            left_out.append({"recording": file.name, "reason": str(reason).partition(": ")[0]})
    manifest = {
        "toolsim": __version__,
        "form": form,
        "words": "kept" if keeps_words else "pseudonyms",
        "lines": list(lines.values()),
        "left_out": left_out,
        "reasons": Counter(entry["reason"] for entry in left_out),
    }
    return list(lines), manifest


def parser() -> Parser:
    """Return the parser of the export command."""
    made = Parser(
        prog="toolsim export", description="Write recorded turns as training data, with words replaced by pseudonyms."
    )
    made.add_argument("paths", nargs="+", type=Path, metavar="DIR", help=".flow files, or folders that contain them")
    made.add_argument("--form", choices=list(FORMS), default="openai", help="the format of each line (default: openai)")
    made.add_argument("--out", type=Path, default=Path("training.jsonl"), metavar="FILE", help="default: %(default)s")
    made.add_argument("--keep-words", action="store_true", help="remove only secrets, and keep all other words")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Export the turns, and return the exit code.

    Raises UsageError if no turn can be exported, or the output files exist or cannot be written.
    """
    return _export(parser().parse_args(words))


def _export(arguments: argparse.Namespace) -> int:
    where, out = ", ".join(map(str, arguments.paths)), arguments.out
    files = flow_files(arguments.paths)
    if not files:
        raise UsageError(f"no .flow file in {where}")
    manifest_path = out.with_suffix(".manifest.json")
    if taken := next((path for path in (out, manifest_path) if path.exists()), None):
        raise UsageError(f"--out: {taken} already exists")
    lines, manifest = export(files, arguments.form, keeps_words=arguments.keep_words)
    counted = list(_counted(manifest["reasons"]))
    if not lines:
        raise UsageError(f"no turns to export in {where} ({'; '.join(counted)})")
    try:
        # A model can write half of a surrogate pair, which cannot be encoded in UTF-8. It is replaced with its JSON
        # escape.
        out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="backslashreplace")
        manifest_path.write_text(json.dumps(manifest, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"--out: {out}: {problem.strerror}") from problem
    print(f"{len(lines)} of {len(files)} recorded turns are in {out}; {manifest_path} lists them")
    for line in counted:
        print(f"  left out: {line}")
    return 0


def _counted(reasons: Mapping[str, int]) -> Iterator[str]:
    for reason, count in sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0])):
        yield f"{count} × {reason}"


if __name__ == "__main__":
    sys.exit(main())
