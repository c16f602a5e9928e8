"""Derives questions from recorded turns, to replace or supplement the built-in questions.

An answer is correct if it has the same calls as the recorded answer. If the recorded answer has no calls, any text
without calls is correct. Turns with faults are omitted. One half of the turns is used to choose settings, and the other
half to confirm them. Each conversation is in only one half, since its turns share messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from toolsim.core import plan
from toolsim.eval.call_as_text import holds_call, looks_like_call
from toolsim.eval.learn.question_bank import Question
from toolsim.eval.learn.rule import ALPHA, Comparison, evidence
from toolsim.eval.runtime.turn import Answer, Request, Tool
from toolsim.recordings.agreement import compare
from toolsim.recordings.export import fault, openai_form, steps
from toolsim.recordings.stored import flow_files
from toolsim.recordings.turns import KINDS, MadeCall, RecordedTurn, Reply, Unusable, read_turn
from toolsim.wire.json_codec import dump

OWN_KINDS: tuple[str, ...] = KINDS
FEWEST = next(wins for wins in range(1, 100) if evidence(wins, 0) >= 1 / ALPHA)
"""The smallest number of questions that can decide a comparison, if the challenger wins all of them."""


@dataclass(frozen=True, slots=True)
class RecordedQuestion(Question):
    """A recorded turn as a question. ``expected`` is the recorded answer, and ``offered`` are the request's tools."""

    expected: Reply = Reply()
    offered: tuple[plan.Tool, ...] = ()
    conversation: str = ""

    def request(self) -> Request:
        """Return the request that asks the question."""
        return Request(self.messages, self.tools)

    def is_right(self, answer: Answer) -> bool:
        """Return whether an answer agrees with the recorded answer."""
        names = {tool.name for tool in self.tools}
        if not answer.calls and (looks_like_call(answer.text) or holds_call(answer.text, names)):
            return False
        got = Reply(answer.text, tuple(MadeCall(call.name, call.arguments) for call in answer.calls))
        return compare(self.expected, got, self.offered).outcome == "same"


@dataclass(frozen=True, slots=True)
class OwnQuestions:
    """Questions from recordings, in two halves: one for choosing settings, and one for confirming the choice."""

    choosing: Sequence[RecordedQuestion]
    confirming: Sequence[RecordedQuestion]

    @property
    def fingerprint(self) -> str:
        """A digest of all questions."""
        return _digest([question.id for question in (*self.choosing, *self.confirming)])

    def facts(self, confirmation: Comparison | None) -> Mapping[str, Any]:
        """Return the figures for the profile. They reveal nothing about the content of the questions."""
        figures = (
            {}
            if confirmation is None
            else {"confirming_won": confirmation.wins, "confirming_lost": confirmation.losses}
        )
        return {
            "recorded_turns": len(self.choosing) + len(self.confirming),
            "chosen_by": len(self.choosing),
            "confirmed_by": len(self.confirming),
            **figures,
        }


def own_questions(paths: Iterable[Path]) -> OwnQuestions:
    """Return the questions from recordings, divided into two halves. ``paths`` can contain files and folders."""
    found: dict[str, RecordedQuestion] = {}
    for file in flow_files(paths):
        try:
            turn = read_turn(file)
            if not fault(turn):
                question = _question(turn)
                found.setdefault(question.id, question)
        except Unusable:
            continue
    halves: tuple[list[RecordedQuestion], list[RecordedQuestion]] = [], []
    conversations: dict[str, list[RecordedQuestion]] = {}
    for question in sorted(found.values(), key=lambda question: question.id):
        conversations.setdefault(question.conversation, []).append(question)
    for own in conversations.values():
        min(halves, key=len).extend(own)
    return OwnQuestions(*halves)


def _question(turn: RecordedTurn) -> RecordedQuestion:
    conversation = steps(turn)
    line = openai_form(conversation, turn.tools)
    messages = tuple(line["messages"][:-1])
    first = next((place for place, message in enumerate(messages, 1) if message["role"] == "user"), 0)
    tools = tuple(Tool(tool.name, tool.description or "", tool.shown_parameters, tool.strict) for tool in turn.tools)
    offered = tuple(replace(tool, kind="function", parameters=tool.shown_parameters) for tool in turn.tools)
    calls = tuple(MadeCall(name, dump(arguments)) for _, name, arguments in conversation[-1].calls)
    return RecordedQuestion(
        _digest([messages, line["tools"]]),
        turn.kind,
        _digest(line["tools"]),
        tools,
        messages,
        expected=Reply(turn.reply.text, calls),
        offered=offered,
        conversation=_digest(messages[:first]),
    )


def _digest(value: Any) -> str:
    return sha256(dump(value).encode()).hexdigest()[:16]
