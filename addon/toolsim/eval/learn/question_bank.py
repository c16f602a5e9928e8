"""Provides the questions of ``toolsim tune``, and checks the answers.

The questions, which are in no other suite, are in ``questions.json``. Its header explains the fields. Three more
kinds are derived from questions that need one call: *later* follows an earlier question with the same tools, its call
and its output; *done* continues from the correct call and its output, and expects text; *must* requires a call. A
fourth kind, *which*, is derived from questions that need two calls. It asks for the output of one of two calls, or
of one of four calls with reordered outputs.

If no call is expected, the text of an answer must not contain a call, because the client would show it to the user
instead of running it. The text must also not repeat a tool output in the notation of the history, as small models do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import cycle, pairwise
from typing import Any

from toolsim.eval.call_as_text import holds_call, looks_like_call
from toolsim.eval.case import data_file
from toolsim.eval.questions import mistake
from toolsim.eval.runtime.turn import Answer, Call, Message, Request, Tool, output_message
from toolsim.request.record import OUTPUT
from toolsim.wire.json_codec import dump

BLOCK = 6
"""Number of questions in a row with one setting. Switching settings is slow on servers that cache only one prompt."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question. ``calls`` are the correct calls, with ``name`` and ``arguments`` (lists of correct values).

    A plain-text answer must contain one of the alternatives in ``says``, if any, and no string in ``never``.
    """

    id: str
    kind: str
    catalog: str
    tools: tuple[Tool, ...]
    messages: tuple[Message, ...]
    calls: tuple[Mapping[str, Any], ...] = ()
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def request(self) -> Request:
        """Return the request that asks the question."""
        return Request(self.messages, self.tools, tool_choice="required" if self.kind == "must" else "auto")

    def is_right(self, answer: Answer) -> bool:
        """Return whether an answer is correct."""
        if self.calls:
            return mistake(answer, self.calls) is None
        if answer.calls or not answer.text.strip() or f"[{OUTPUT}" in answer.text:
            return False
        if looks_like_call(answer.text) or holds_call(answer.text, {tool.name for tool in self.tools}):
            return False
        if any(said in answer.text for said in self.never):
            return False
        return not self.says or any(said in answer.text for said in self.says)


def fingerprint() -> str:
    """Return a digest of all questions."""
    return sha256(repr(questions()).encode()).hexdigest()[:16]


def questions() -> Sequence[Question]:
    """Return all questions. Derived questions are last."""
    document = data_file("learn/questions.json")
    tools = {tool["name"]: Tool(**tool) for tool in document["tools"]}
    catalogs = {name: tuple(tools[tool] for tool in names) for name, names in document["catalogs"].items()}
    asked = [_question(entry, catalogs) for entry in document["questions"]]
    single = [question for question in asked if question.kind == "one"]
    outputs: Mapping[str, Mapping[str, Any]] = document["outputs"]
    done = (_done(question, outputs) for question in single)
    made = [*_later(single, outputs), *done, *(_as(question, "must", question.messages) for question in single)]
    return [*asked, *made, *_which([question for question in asked if question.kind == "two"])]


def _question(entry: Mapping[str, Any], catalogs: Mapping[str, tuple[Tool, ...]]) -> Question:
    messages: list[Message] = [{"role": "user", "content": entry["ask"]}]
    if "made" in entry:
        messages += _made([(entry["made"]["name"], entry["made"]["arguments"])], [entry["output"]])
    calls, says = tuple(entry.get("calls", ())), tuple(entry.get("says", ()))
    catalog = entry["catalog"]
    return Question(entry["id"], entry["kind"], catalog, catalogs[catalog], tuple(messages), calls, says)


def _later(single: Sequence[Question], outputs: Mapping[str, Mapping[str, Any]]) -> Iterator[Question]:
    """Yield each question again, as a continuation of the previous question with the same tools."""
    last: dict[str, Question] = {}
    for question in single:
        before, last[question.catalog] = last.get(question.catalog), question
        if before is None:
            continue
        history = [*before.messages, *_right(before, outputs)]
        yield _as(question, "later", (*history, {"role": "assistant", "content": "Done."}, *question.messages))


def _done(question: Question, outputs: Mapping[str, Mapping[str, Any]]) -> Question:
    return replace(_as(question, "done", (*question.messages, *_right(question, outputs))), calls=())


def _right(question: Question, outputs: Mapping[str, Mapping[str, Any]]) -> list[Message]:
    """Return messages with a question's correct call and its output."""
    name = question.calls[0]["name"]
    return _made([(name, _arguments(question.calls[0]))], [outputs.get(name, {"ok": True})])


def _which(asked: Sequence[Question]) -> Iterator[Question]:
    """Yield questions that ask for one of two outputs in order, or for one of four reordered outputs."""
    for question in asked:
        yield _whose([question], (0, 1))
    for first, second in pairwise(sorted(asked, key=lambda question: question.catalog)):
        if first.catalog == second.catalog:
            yield _whose([first, second], (2, 0, 3, 1))


_CODES = ("K417", "R902", "T635", "M281")


def _whose(asked: Sequence[Question], order: Sequence[int]) -> Question:
    """Return a question about the output of one call in ``asked``. ``order`` lists the outputs by their indexes."""
    question = asked[-1]
    calls = [(call["name"], _arguments(call)) for one in asked for call in one.calls]
    place = int(question.id[-2:]) % len(calls)
    name, arguments = calls[place]
    codes = _CODES[: len(calls)]
    messages = (
        *(message for one in asked for message in one.messages),
        *_made(calls, [{"code": code} for code in codes], order),
        {"role": "user", "content": f"Which code did {name} return for {', '.join(map(str, arguments.values()))}?"},
    )
    made = replace(_as(question, "which" if len(asked) == 1 else "which_of_four", messages), kind="which", calls=())
    return replace(made, says=(codes[place],), never=tuple(code for code in codes if code != codes[place]))


def _arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: values[0] for name, values in call["arguments"].items()}


def _as(question: Question, kind: str, messages: tuple[Message, ...]) -> Question:
    name = question.id.replace(question.kind, kind)
    return Question(name, kind, question.catalog, question.tools, messages, question.calls)


def _made(
    calls: Sequence[tuple[str, Mapping[str, Any]]],
    outputs: Sequence[Mapping[str, Any]],
    order: Sequence[int] | None = None,
) -> list[Message]:
    """Return messages with calls and their outputs. ``order`` is the order of the outputs (None: that of the calls)."""
    made = tuple(Call(f"call_{number}", name, dump(arguments)) for number, (name, arguments) in enumerate(calls, 1))
    results = [output_message(call, dump(output)) for call, output in zip(made, outputs, strict=True)]
    return [Answer("", made).message(), *(results if order is None else [results[number] for number in order])]


def blocks(asked: Sequence[Question], kinds: Collection[str]) -> list[Sequence[Question]]:
    """Return questions of these kinds in blocks. A block has one catalog and mixed kinds. The catalogs alternate."""
    by_catalog: dict[str, list[Question]] = {}
    for catalog in dict.fromkeys(question.catalog for question in asked):
        own = [question for question in asked if question.catalog == catalog and question.kind in kinds]
        # Sorting questions by their relative position within their kind spreads each kind evenly.
        count = {kind: sum(question.kind == kind for question in own) for kind in kinds}
        seen = dict.fromkeys(kinds, 0)
        placed: list[tuple[float, int, Question]] = []
        for number, question in enumerate(own):
            placed.append(((seen[question.kind] + 0.5) / count[question.kind], number, question))
            seen[question.kind] += 1
        by_catalog[catalog] = [question for *_, question in sorted(placed, key=lambda place: place[:2])]
    found: list[Sequence[Question]] = []
    for catalog in cycle(list(by_catalog)):
        if not any(by_catalog.values()):
            return found
        if own := by_catalog[catalog]:
            found.append(own[:BLOCK])
            by_catalog[catalog] = own[BLOCK:]
    return found
