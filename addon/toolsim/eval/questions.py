"""A quick test of a model's ability to call tools: simple single-turn questions with everyday tools.

A suite is a data file with the correct calls for each question, and the correct values of each argument. Names of
people and places are compared without regard to case and final periods. All other values are compared exactly. If a
question has no correct calls, the model must not call any tool. The manifest's wording was tuned on some of the
``questions``; ``unseen`` contains other questions with other tools, which were never used for tuning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolsim.eval.case import Case, Label, Verdict, data_file
from toolsim.eval.runtime.turn import Answer, Call, Request, Send, Tool

FILES: Mapping[str, str] = {"questions": "questions.json", "unseen": "unseen_questions.json"}


def cases(suite: str = "questions") -> Sequence[Case]:
    """Return all questions of a suite in ``FILES``, in file order."""
    document = data_file(FILES[suite])
    tools = {tool["name"]: Tool(**tool) for tool in document["tools"]}
    return [
        Case(
            suite,
            entry["id"],
            _Question(entry["question"], tuple(tools[name] for name in entry["tools"]), tuple(entry["calls"])).play,
        )
        for entry in document["questions"]
    ]


@dataclass(frozen=True, slots=True)
class _Question:
    """One question. ``calls`` are the correct calls, with ``name`` and ``arguments`` (lists of correct values)."""

    text: str
    tools: tuple[Tool, ...]
    calls: tuple[Mapping[str, Any], ...]

    async def play(self, send: Send) -> Verdict:
        answer = await send(Request(({"role": "user", "content": self.text},), self.tools))
        label = mistake(answer, self.calls)
        return Verdict.passed() if label is None else Verdict.failed(label, answer.in_short())


def mistake(answer: Answer, calls: Sequence[Mapping[str, Any]]) -> Label | None:
    """Return the mistake in an answer's calls, or None if they match the correct ``calls`` in any order."""
    left = list(answer.calls)
    if calls and not left:
        return "truncation" if answer.finish == "length" else "no_call"
    if len(left) < len(calls):
        return "parallel_collapse"
    if len(left) > len(calls):
        return "needless_call"
    # Each correct call is compared with the model's call that is most similar to it.
    first: Label | None = None
    for right in calls:
        mistakes = [_mistake(call, right) for call in left]
        place = mistakes.index(None) if None in mistakes else _nearest(left, right)
        first = first or mistakes[place]
        del left[place]
    return first


def _nearest(calls: Sequence[Call], right: Mapping[str, Any]) -> int:
    return next((place for place, call in enumerate(calls) if call.name == right["name"]), 0)


def _mistake(call: Call, right: Mapping[str, Any]) -> Label | None:
    if call.name != right["name"]:
        return "wrong_tool"
    arguments = call.parsed()
    if arguments is None:
        return "malformed_json"
    if not arguments.keys() <= right["arguments"].keys():
        return "hallucinated_parameter"
    for name, values in right["arguments"].items():
        if name not in arguments:
            if None not in values:
                return "missing_required"
        elif not any(_same(arguments[name], value) for value in values if value is not None):
            coerced = any(type(arguments[name]) is str and arguments[name] == json.dumps(value) for value in values)
            return "type_coercion" if coerced else "wrong_value"
    return None


def _same(written: object, right: object) -> bool:
    if isinstance(written, str) and isinstance(right, str):
        return written.strip().rstrip(".").casefold() == right.strip().rstrip(".").casefold()
    # The types are compared too, because True equals 1 in Python.
    return isinstance(written, bool) == isinstance(right, bool) and written == right
