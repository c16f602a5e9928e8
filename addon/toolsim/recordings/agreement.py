"""Compares an answer with a recorded answer by the tools, arguments and order of the calls. No tool is run.

| outcome   | the recorded answer has calls     | the recorded answer has no calls |
|-----------|-----------------------------------|----------------------------------|
| same      | the same calls, in the same order | text without a call              |
| different | other calls, all of them valid    | calls, all of them valid         |
| invalid   | an invalid call                   | an invalid call                  |
| none      | no call                           | neither a call nor text          |
| error     | the backend returned an error     | the backend returned an error    |

A call is valid if its tool is on offer and its arguments match the tool's schema. The wording of answers is not
compared. A different call can be just as correct as the recorded call, so the share of turns with the outcome ``same``
is a lower bound for the share of correct turns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolsim.core.plan import Tool
from toolsim.recordings.compare import differences
from toolsim.recordings.turns import MadeCall, Reply
from toolsim.response.checker import SchemaChecker
from toolsim.wire.json_codec import dump
from toolsim.wire.json_fields import mapping

Outcome = Literal["same", "different", "invalid", "none", "error"]
OUTCOMES: Mapping[Outcome, str] = {
    "same": "same",
    "different": "valid, but different",
    "invalid": "invalid",
    "none": "none",
    "error": "no answer",
}
"""The possible outcomes for a turn, with the names that reports use."""

_UNREADABLE = object()


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of comparing an answer with the recorded answer.

    ``differences`` describes each difference in one line.
    """

    outcome: Outcome
    differences: tuple[str, ...] = ()


def compare(expected: Reply, got: Reply, tools: Sequence[Tool], failures: Sequence[str] = ()) -> Agreement:
    """Compare an answer with the recorded answer.

    ``failures`` are toolsim's log messages about calls that it could not parse.
    """
    if got.error:
        return Agreement("invalid" if got.is_invalid_call else "error", (got.error,))
    known = {tool.name: tool for tool in tools}
    problems = [problem for call in got.calls if (problem := _problem(call, known))]
    if not got.calls:
        problems = [f"a call that cannot be parsed: {failure}" for failure in failures]
    if problems:
        return Agreement("invalid", tuple(problems))
    if not expected.calls:
        if got.calls:
            names = ", ".join(call.name for call in got.calls)
            return Agreement("different", (f"got a call of {names}, expected a text answer",))
        return Agreement("same") if got.text.strip() else Agreement("none", ("got an empty answer",))
    if not got.calls:
        names = ", ".join(call.name for call in expected.calls)
        return Agreement("none", (f"got no call, expected {names}",))
    found = tuple(_differences(expected.calls, got.calls, known))
    return Agreement("different", found) if found else Agreement("same")


def _problem(call: MadeCall, known: Mapping[str, Tool]) -> str:
    """Return why a call is invalid, or "" if it is valid."""
    tool = known.get(call.name)
    if tool is None:
        return f"{call.name}: the tool is not on offer"
    if tool.kind == "custom":
        return ""
    value = _value(call, tool)
    if value is _UNREADABLE:
        return f"{call.name}: the arguments are not valid JSON"
    finding = SchemaChecker(lambda *_: None).mismatch(tool, value)
    return f"{call.name}: {finding.mismatch}" if finding is not None and finding.mismatch else ""


def _differences(expected: Sequence[MadeCall], got: Sequence[MadeCall], known: Mapping[str, Tool]) -> list[str]:
    # The arguments are compared as JSON text, because True equals 1 in Python.
    wanted, made = ([(call.name, dump(_typed_arguments(call, known))) for call in side] for side in (expected, got))
    if wanted == made:
        return []
    unpaired, missing = list(made), []
    for call in wanted:
        if call in unpaired:
            unpaired.remove(call)
        else:
            missing.append(call)
    if not missing and not unpaired:
        order = (", ".join(f"{name}({arguments})" for name, arguments in side) for side in (made, wanted))
        return [f"the same calls in another order: got {next(order)}; expected {next(order)}"]
    found = []
    for name, arguments in missing:
        other = next((call for call in unpaired if call[0] == name), None)
        if other is None:
            found.append(f"got no call of {name}({arguments})")
            continue
        unpaired.remove(other)
        found += [str(difference) for difference in differences(json.loads(other[1]), json.loads(arguments), name)]
    return [*found, *(f"got an extra call: {name}({arguments})" for name, arguments in unpaired)]


def _typed_arguments(call: MadeCall, known: Mapping[str, Tool]) -> Any:
    """Return a call's arguments, normalized by the tool's schema.

    For example, 5.0 becomes 5, and a missing property becomes its default.
    """
    tool = known.get(call.name)
    if tool is None or tool.kind == "custom":
        return call.arguments.strip()
    value = _value(call, tool)
    return call.arguments.strip() if value is _UNREADABLE else _typed(value, mapping(tool.parameters))


def _value(call: MadeCall, tool: Tool) -> Any:
    try:
        return json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return _UNREADABLE


def _typed(value: Any, schema: Mapping[str, Any]) -> Any:
    match value:
        case dict():
            properties = mapping(schema.get("properties"))
            defaults = {
                name: mapping(part)["default"] for name, part in properties.items() if "default" in mapping(part)
            }
            # The members are sorted by name, because the order of an object's members has no meaning.
            return {
                name: _typed(member, mapping(properties.get(name)))
                for name, member in sorted((defaults | value).items())
            }
        case list():
            return [_typed(item, mapping(schema.get("items"))) for item in value]
        case float() if value.is_integer():
            return int(value)
    return value
