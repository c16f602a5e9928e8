"""Makes the decisions by asking each challenger and the current setting the same questions until the rule decides.

Each question is asked only once per setting. The answers are reused if the same setting is compared again, and when an
interrupted run is continued. Errors do not count as answers, but ``MAX_ERRORS`` in a row end the session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from toolsim.eval.learn.decisions import Decision, Setting, count
from toolsim.eval.learn.question_bank import Question, blocks
from toolsim.eval.learn.rule import Comparison

MAX_ERRORS = 3


class Unavailable(Exception):
    """Raised if the backend does not support a setting. The message contains the reason."""


class Ended(Exception):
    """Raised if no more questions can be asked. The message contains the reason."""


Ask = Callable[[Setting, Question], Awaitable[bool | None]]
"""Asks a question. Returns whether the answer was correct (None after an error). Can raise Unavailable or Ended."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A finished comparison. If the challenger was unavailable, ``why`` is the reason."""

    what: str
    challenger: Setting
    incumbent: Setting
    outcome: Literal["preferred", "dropped", "unavailable"]
    comparison: Comparison
    why: str = ""


@dataclass(slots=True)
class TuningResult:
    """The result of a session. ``ended`` is the reason if the session ended early, or "" if all decisions were made."""

    setting: Setting = field(default_factory=Setting)
    choices: list[Choice] = field(default_factory=list)
    ended: str = ""
    confirmation: Comparison | None = None
    """The comparison of the chosen setting with the defaults. Its questions were not used to choose the setting."""
    unconfirmed: Setting | None = None
    """The chosen setting if it was not confirmed (``setting`` then contains the defaults), otherwise None."""


Watch = Callable[[str, Setting, Comparison, int], None]
"""A function that is called after each question. The last argument is the number of remaining questions."""


async def learn(
    decided: Sequence[Decision],
    asked: Sequence[Question],
    ask: Ask,
    watch: Watch = lambda *_: None,
    close: Callable[[Setting], Awaitable[None]] | None = None,
    result: TuningResult | None = None,
    *,
    confirming: Sequence[Question] | None = None,
) -> TuningResult:
    """Make all decisions, or as many as possible.

    ``close`` is called with each setting that is no longer needed. ``result`` is updated continuously, for callers that
    interrupt the function. If there are ``confirming`` questions, the chosen setting also has to beat the defaults on
    these questions. The rule then ignores the number of challengers, since a winner by chance would fail here.
    """
    result, asker = result or TuningResult(), _Asker(ask)
    challengers = count(decided) if confirming is None else 1
    try:
        for decision in decided:
            for challenger in decision.challengers(result.setting):
                order = blocks(asked, decision.kinds)
                choice = await _compare(decision.what, challenger, result.setting, challengers, order, asker, watch)
                result.choices.append(choice)
                given_up = choice.challenger
                if choice.outcome == "preferred":
                    result.setting, given_up = challenger, result.setting
                if close is not None:
                    await close(given_up)
        if confirming is not None and result.setting != Setting():
            await _confirm(result, confirming, asker, watch)
    except Ended as end:
        result.ended = str(end)
    finally:
        # This check also runs if the session is canceled, because a setting must not be kept without confirmation.
        compared, is_new = result.confirmation, result.setting != Setting()
        if confirming is not None and is_new and (compared is None or compared.evidence < compared.boundary):
            result.unconfirmed, result.setting = result.setting, Setting()
    return result


async def _confirm(result: TuningResult, confirming: Sequence[Question], asker: _Asker, watch: Watch) -> None:
    """Compare the chosen setting with the defaults. Ask all questions, because the profile reports the figures."""
    result.confirmation = comparison = Comparison(1)
    for number, question in enumerate(confirming, 1):
        was_right = await asker.of_incumbent(Setting(), question)
        is_right = await asker.of_incumbent(result.setting, question)
        if is_right is not None and was_right is not None:
            comparison.add(is_right, was_right, question.kind)
        watch("confirmation", result.setting, comparison, len(confirming) - number)


async def _compare(
    what: str,
    challenger: Setting,
    incumbent: Setting,
    challengers: int,
    order: Sequence[Sequence[Question]],
    asker: _Asker,
    watch: Watch,
) -> Choice:
    comparison = Comparison(challengers)
    remaining = [question for block in order for question in block]
    for block in order:
        before = [await asker.of_incumbent(incumbent, question) for question in block]
        for question, was_right in zip(block, before, strict=True):
            remaining = remaining[1:]
            # The challenger cannot win a question that the current setting has answered correctly.
            left = sum(asker.known(incumbent, question) is not True for question in remaining)
            try:
                is_right = await asker(challenger, question)
            except Unavailable as why:
                return Choice(what, challenger, incumbent, "unavailable", comparison, str(why))
            if is_right is not None and was_right is not None:
                comparison.add(is_right, was_right, question.kind)
            watch(what, challenger, comparison, left)
            if (verdict := comparison.verdict(left)) is not None:
                return Choice(what, challenger, incumbent, verdict, comparison)
    return Choice(what, challenger, incumbent, "dropped", comparison)


class _Asker:
    """Asks each question only once with each setting."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[tuple[Setting, str], bool | None] = {}
        self._errors = 0

    async def __call__(self, setting: Setting, question: Question) -> bool | None:
        key = setting, question.id
        if key not in self._known:
            self._known[key] = await self._ask(setting, question)
            self._errors = self._errors + 1 if self._known[key] is None else 0
            if self._errors == MAX_ERRORS:
                raise Ended(f"the backend did not answer {MAX_ERRORS} consecutive questions")
        return self._known[key]

    def known(self, setting: Setting, question: Question) -> bool | None:
        """Return whether the answer to a question was correct, or None if the question was not asked or answered."""
        return self._known.get((setting, question.id))

    async def of_incumbent(self, setting: Setting, question: Question) -> bool | None:
        try:
            return await self(setting, question)
        except Unavailable as why:
            raise Ended(str(why)) from why
