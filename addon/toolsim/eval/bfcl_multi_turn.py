"""BFCL's multi-turn cases: a conversation with simulated programs that keep state (files, tickets, trades …).

Each user turn continues until the model answers without a call; the calls run on the package's simulated classes and
their outputs go back. After each turn the package's checker compares state and outputs with those of the right calls,
which it runs on its own instances. It proceeds turn by turn and ends at the first wrong one; a case here does the same,
which skips the turns that can no longer change the verdict.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolsim.eval import bfcl_package
from toolsim.eval.bfcl_label import decode, label_unread
from toolsim.eval.bfcl_prompt import tools_of
from toolsim.eval.case import Label, Verdict
from toolsim.eval.runtime.turn import Answer, Message, Request, Send, output_message

# The leaderboard's own limit of requests within one turn.
MAX_STEPS = 20

_RUNS = itertools.count()


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """One case. ``answers``: the right calls of each turn, as lines of Python."""

    entry: bfcl_package.Entry
    answers: Sequence[Any]

    async def play(self, send: Send) -> Verdict:
        """Play the turns in order until one is wrong."""
        run = f"toolsim_{next(_RUNS)}"
        messages: list[Message] = []
        turns: list[list[list[str]]] = []
        try:
            for number, asked in enumerate(self.entry["question"]):
                messages += asked
                steps, last = await self._turn(send, messages, run)
                turns.append(steps)
                if len(steps) == MAX_STEPS:
                    return Verdict.failed("turn_limit", f"turn {number}: {MAX_STEPS} requests")
                checked = f"{run}_{number}"
                error = bfcl_package.multi_turn_error(turns, self.answers[: number + 1], self.entry, checked)
                if error is not None:
                    return Verdict.failed(_label(error, last), f"turn {number}: {error}")
            return Verdict.passed()
        finally:
            bfcl_package.forget(run)

    async def _turn(self, send: Send, messages: list[Message], run: str) -> tuple[list[list[str]], Answer]:
        """Return the lines of each step of one turn, and its last answer; continues ``messages``."""
        tools = tools_of(self.entry)
        names = [tool.name for tool in tools]
        steps: list[list[str]] = []
        while True:
            answer = await send(Request(tuple(messages), tools))
            messages.append(answer.message())
            calls = decode(answer.calls)
            # Calls that cannot be parsed end the turn, as they do on the leaderboard.
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
