"""Provides the Berkeley Function Calling Leaderboard (v4) as suites, with its original cases, prompt and checkers.

A single-turn case is correct if the AST checker of the package ``bfcl-eval`` accepts the answer or, in the irrelevance
categories, if the answer has no call. In a multi-turn case, each user turn continues until the model answers without a
call. The calls run on the package's simulated classes, which have state (files, tickets, trades …), and the model
receives their outputs. After each turn, the package's checker compares the state and the outputs with the results of
the correct calls. The first incorrect turn ends the case.

The methods ``toolsim`` and ``native`` offer the functions as ``tools``, as the leaderboard does for function calling
models. The ``prompt`` method uses the leaderboard's default prompt and parser for all other models.

The checkers use a fixed list of correct answers, so the figures are comparable between the methods and with the
leaderboard. Answers that are missing from the list count as incorrect.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolsim.command_line import UsageError
from toolsim.eval import bfcl_package
from toolsim.eval.bfcl_label import decode, label_unread, label_wrong
from toolsim.eval.bfcl_prompt import BfclPrompt, tools_of
from toolsim.eval.case import Case, Label, Verdict
from toolsim.eval.runtime.turn import Answer, Message, Request, Send, output_message

IRRELEVANCE = ("irrelevance", "live_irrelevance")
SINGLE_TURN = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    *IRRELEVANCE,
)
CATEGORIES = (*SINGLE_TURN, "multi_turn_base")
MAX_STEPS = 20
"""Maximum number of requests to the model within one turn, as on the leaderboard."""

_RUNS = itertools.count()


def cases(category: str) -> Sequence[Case]:
    """Return a category's cases, in BFCL's order. Raises UsageError if the category is unknown or BFCL is missing."""
    if category not in CATEGORIES:
        raise UsageError(f"no such category: {category}; expected one of {', '.join(CATEGORIES)}")
    entries = bfcl_package.load_entries(category)
    answers = {} if category in IRRELEVANCE else bfcl_package.load_answers(category)
    made = []
    for entry in entries:
        answer = answers.get(entry["id"], [])
        single = _SingleTurn(category, entry, answer)
        play = _MultiTurn(entry, answer).play if category == "multi_turn_base" else single.play
        made.append(Case(f"bfcl:{category}", entry["id"], play, form=BfclPrompt(entry)))
    return made


@dataclass(frozen=True, slots=True)
class _SingleTurn:
    """A single-turn case. ``answers`` are the correct calls, with a list of correct values for each argument."""

    category: str
    entry: bfcl_package.Entry
    answers: Sequence[Any]

    async def play(self, send: Send) -> Verdict:
        answer = await send(Request(tuple(self.entry["question"][0]), tools_of(self.entry)))
        if self.category in IRRELEVANCE:
            names = ", ".join(call.name for call in answer.calls)
            return Verdict.failed("needless_call", names) if answer.calls else Verdict.passed()
        calls = decode(answer.calls)
        if not calls:
            return Verdict.failed(label_unread(answer), answer.in_short())
        functions = self.entry["function"]
        error = bfcl_package.error_of(functions, calls, self.answers, self.category)
        if error is None:
            return Verdict.passed()
        return Verdict.failed(label_wrong(functions, calls, self.answers), f"{error}: {answer.in_short()}")


@dataclass(frozen=True, slots=True)
class _MultiTurn:
    """A multi-turn case. ``answers`` are the correct calls for each turn, as lines of Python."""

    entry: bfcl_package.Entry
    answers: Sequence[Any]

    async def play(self, send: Send) -> Verdict:
        run = f"toolsim_{next(_RUNS)}"
        messages: list[Message] = []
        turns: list[list[list[str]]] = []
        try:
            for number, asked in enumerate(self.entry["question"]):
                messages += asked
                steps, last = await self._turn(send, messages, run)
                turns.append(steps)
                if len(steps) == MAX_STEPS:
                    return Verdict.failed("turn_limit", f"turn {number}: more calls after {MAX_STEPS} requests")
                checked = f"{run}_{number}"
                error = bfcl_package.multi_turn_error(turns, self.answers[: number + 1], self.entry, checked)
                if error is not None:
                    return Verdict.failed(_label(error, last), f"turn {number}: {error}")
            return Verdict.passed()
        finally:
            bfcl_package.forget(run)

    async def _turn(self, send: Send, messages: list[Message], run: str) -> tuple[list[list[str]], Answer]:
        """Run one turn, and append its messages to ``messages``. Return each step's calls, and the last answer."""
        tools = tools_of(self.entry)
        names = [tool.name for tool in tools]
        steps: list[list[str]] = []
        while True:
            answer = await send(Request(tuple(messages), tools))
            messages.append(answer.message())
            calls = decode(answer.calls)
            # Arguments that are not JSON end the turn, as on the leaderboard.
            if not calls:
                return steps, answer
            lines = bfcl_package.source(calls, names)
            steps.append(lines)
            outputs = bfcl_package.execute(lines, self.entry, run)
            for call, output in zip(answer.calls, outputs, strict=True):
                messages.append(output_message(call, output))
            if len(steps) == MAX_STEPS:
                return steps, answer


def _label(error: str, last: Answer) -> Label:
    if error.endswith("empty_turn_model_response"):
        return label_unread(last)
    return "wrong_state"
