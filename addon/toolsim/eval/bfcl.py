"""The Berkeley Function Calling Leaderboard (v4) as suites, with its own cases, prompt and checkers only.

A single-turn case is right when the package's own AST checker says so, or, in the categories of irrelevance, when no
call was made. The methods ``toolsim`` and ``native`` offer the functions as ``tools``, as the leaderboard does for
function calling models; ``prompt`` is its default prompt and parser for all other models.

The checker compares with a list of right answers, so its figures are comparable between the methods and with the
leaderboard's own. Whether each answer is the only right one is up to the leaderboard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolsim.command_line import UsageError
from toolsim.eval import bfcl_multi_turn, bfcl_package
from toolsim.eval.bfcl_label import decode, label_unread, label_wrong
from toolsim.eval.bfcl_prompt import BfclPrompt, tools_of
from toolsim.eval.case import Case, Verdict
from toolsim.eval.runtime.turn import Request, Send

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


def cases(category: str) -> Sequence[Case]:
    """Return all cases of a category, in the order of the package's file. Raises UsageError."""
    if category not in CATEGORIES:
        raise UsageError(f"no such category: {category}; there are {', '.join(CATEGORIES)}")
    entries = bfcl_package.load_entries(category)
    answers = {} if category in IRRELEVANCE else bfcl_package.load_answers(category)
    made = []
    for entry in entries:
        answer = answers.get(entry["id"], [])
        single = _SingleTurn(category, entry, answer)
        play = bfcl_multi_turn.MultiTurn(entry, answer).play if category == "multi_turn_base" else single.play
        made.append(Case(f"bfcl:{category}", entry["id"], play, form=BfclPrompt(entry)))
    return made


@dataclass(frozen=True, slots=True)
class _SingleTurn:
    """One question, one answer. ``answers``: the right calls, each with the values that are right for its arguments."""

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
