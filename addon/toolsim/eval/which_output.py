"""Implements the suite ``which_output``, in which the model has to report the output of one of several parallel calls.

The outputs are in the order of the calls, or in another order, since some clients send each output as soon as it is
ready. A correct answer makes no calls and contains only the correct number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolsim.eval.case import Case, Verdict, data_file
from toolsim.eval.runtime.turn import Answer, Call, Message, Request, Send, Tool, output_message

SUITE = "which_output"

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def cases() -> Sequence[Case]:
    """Return all cases in the order of the file. Cases that begin with the same messages follow one another."""
    document = data_file("which_output.json")
    tools = tuple(Tool(**tool) for tool in document["tools"])
    return [case for conversation in document["conversations"] for case in _cases(conversation, tools)]


def _cases(conversation: Mapping[str, Any], tools: tuple[Tool, ...]) -> Iterator[Case]:
    values = conversation["values"]
    for order, asked in conversation["asked"].items():
        numbers = conversation["order"] if order == "shuffled" else range(len(values))
        history = _history(conversation, numbers)
        for number in asked:
            name, value = values[number]
            question = f"{conversation['question'].format(name)} Answer with the number only."
            messages = (*history, {"role": "user", "content": question})
            yield Case(SUITE, f"{conversation['id']}_{order}_{name.lower()}", _Asked(messages, tools, value).play)


def _history(conversation: Mapping[str, Any], order: Sequence[int]) -> list[Message]:
    """Return the user's message, the calls, and the outputs of the calls in the order ``order``."""
    calls = tuple(
        Call(f"call_{number:03}", conversation["tool"], json.dumps({conversation["argument"]: name}))
        for number, (name, _) in enumerate(conversation["values"], 1)
    )
    outputs = [json.dumps({conversation["result"]: value}) for _, value in conversation["values"]]
    return [
        {"role": "user", "content": conversation["user"]},
        Answer("", calls).message(),
        *(output_message(calls[number], outputs[number]) for number in order),
    ]


@dataclass(frozen=True, slots=True)
class _Asked:
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    value: float

    async def play(self, send: Send) -> Verdict:
        answer = await send(Request(self.messages, self.tools))
        if answer.calls:
            return Verdict.failed("needless_call", answer.in_short())
        if {float(number) for number in _NUMBER.findall(answer.text)} != {float(self.value)}:
            return Verdict.failed("wrong_value", f"expected {self.value}, got {answer.in_short()!r}")
        return Verdict.passed()
