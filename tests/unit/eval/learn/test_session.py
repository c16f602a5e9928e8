"""Tests for complete tuning sessions with simulated models. The best setting is found even if some answers are
random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from toolsim.eval.learn.decisions import DEFAULTS, Setting, decisions
from toolsim.eval.learn.question_bank import Question, questions
from toolsim.eval.learn.rule import ALPHA
from toolsim.eval.learn.session import MAX_ERRORS, Ask, Ended, TuningResult, Unavailable, learn

ASKED = questions()
Model = Callable[[Setting, Question], bool]


def model(right: Model, noise: float = 0.0, seed: int = 1) -> Ask:
    """Return a simulated model that answers correctly if ``right`` returns True, except that a random share ``noise``
    of its answers is incorrect.
    """
    chance = Random(seed)

    async def ask(setting: Setting, question: Question) -> bool | None:
        return right(setting, question) and chance.random() >= noise

    return ask


async def learned(ask: Ask, engine: str = "llama.cpp") -> TuningResult:
    return await learn(decisions(engine), ASKED, ask)


def only(**values: str) -> Model:
    """Return a model that makes correct calls only if the setting has the given values."""
    return lambda setting, question: not question.calls or values.items() <= setting.values().items()


EXPECTED: dict[str, tuple[Model, dict[str, str]]] = {
    "any": (lambda *_: True, {}),
    "none": (lambda *_: False, {}),
    "no calls": (only(manifest="nothing"), {}),
    "hermes": (only(manifest="hermes"), {"manifest": "hermes"}),
    "schemas": (only(manifest="schemas"), {"manifest": "schemas"}),
    "typescript": (only(manifest="typescript"), {"manifest": "typescript"}),
    "native": (only(mode="native"), {"mode": "native"}),
    "lines": (
        lambda setting, question: question.kind != "two" or setting.manifest == "lines",
        {"manifest": "lines"},
    ),
    "needless": (
        lambda setting, question: question.kind not in ("near", "none", "refusal") or setting.second_opinion == "on",
        {"second_opinion": "on"},
    ),
    "invents": (
        lambda setting, question: question.kind not in ("near", "none", "refusal") or setting.second_opinion != "off",
        {},
    ),
    "enforced": (
        lambda setting, question: question.kind != "must" or setting.constrain == "gbnf",
        {"constrain": "gbnf"},
    ),
    "records": (
        lambda setting, question: (
            question.kind not in ("done", "which", "after", "later") or setting.history == "bracketed"
        ),
        {"history": "bracketed"},
    ),
    "records, but not after an output": (
        lambda setting, question: (
            question.kind not in ("done", "which", "after", "later")
            or (setting.history == "bracketed") != (question.kind == "after")
        ),
        {},
    ),
    "two things": (
        lambda setting, question: (
            setting.manifest == "hermes"
            if question.calls
            else setting.second_opinion == "on" or len(question.messages) > 1
        ),
        {"manifest": "hermes", "second_opinion": "on"},
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
async def test_best_setting_is_found(name: str) -> None:
    """A tuning session finds the setting that the model needs, and keeps the defaults of all other options."""
    right, changed = EXPECTED[name]
    course = await learned(model(right))
    assert course.setting.changed() == changed
    assert course.ended == ""


@pytest.mark.parametrize("name", ["hermes", "native", "needless"])
async def test_best_setting_is_found_despite_noise(name: str) -> None:
    """If 20% of the answers are wrong at random, the best setting is still found in at least 36 of 40 sessions."""
    right, changed = EXPECTED[name]
    found = [(await learned(model(right, 0.2, seed))).setting.changed() for seed in range(40)]
    assert found.count(changed) >= 36


async def test_equal_settings_keep_the_defaults() -> None:
    """If all settings work equally well, a session keeps the defaults with a probability of at least 1 - ALPHA."""
    courses = 300
    found = Counter([str((await learned(model(lambda *_: True, 0.2, seed))).setting) for seed in range(courses)])
    assert found["defaults"] >= courses * (1 - ALPHA)


async def test_question_is_asked_once_per_setting() -> None:
    """Each question is sent only once for each setting, even if several comparisons use the answer. Clear comparisons
    end early.
    """
    seen: Counter[tuple[Setting, str]] = Counter()

    async def ask(setting: Setting, question: Question) -> bool | None:
        seen[setting, question.id] += 1
        return True

    await learned(ask)
    assert set(seen.values()) == {1}
    # Each challenger answers twelve questions. The incumbent answers only the questions that are needed for the
    # comparisons.
    assert len(seen) <= 9 * 12 + 60


async def test_errors_do_not_count_as_answers() -> None:
    """A question that causes an error does not count as answered. After several consecutive errors, the session ends
    and keeps its earlier decisions.
    """
    number = 0

    async def sometimes(setting: Setting, question: Question) -> bool | None:
        nonlocal number
        number += 1
        return None if number % 3 == 0 else only(manifest="hermes")(setting, question)

    course = await learned(sometimes)
    assert (course.setting.manifest, course.ended) == ("hermes", "")

    async def breaks(setting: Setting, question: Question) -> bool | None:
        if setting.mode == "native":
            return None
        return only(manifest="hermes")(setting, question)

    course = await learned(breaks)
    assert course.setting.changed() == {"manifest": "hermes"}
    assert [choice.outcome for choice in course.choices] == ["preferred"]
    assert course.ended == f"the backend did not answer {MAX_ERRORS} consecutive questions"


async def test_refused_setting_is_not_chosen() -> None:
    """If the backend refuses a challenger's setting, that setting is not chosen. If the backend refuses the incumbent's
    setting, the session ends.
    """

    async def ask(setting: Setting, question: Question) -> bool | None:
        if setting.mode == "native":
            raise Unavailable("it does not support tools")
        return only(manifest="schemas")(setting, question)

    course = await learned(ask)
    assert course.setting.changed() == {"manifest": "schemas"}
    assert [(choice.why, choice.comparison.pairs) for choice in course.choices if choice.outcome == "unavailable"] == [
        ("it does not support tools", 0)
    ]

    async def nothing(setting: Setting, question: Question) -> bool | None:
        raise Unavailable("no")

    course = await learned(nothing)
    assert (course.choices, course.ended) == ([], "no")


async def test_interrupted_session_keeps_its_decisions() -> None:
    """If a tuning session is interrupted, it keeps its decisions. The comparison in progress remains undecided."""
    left = 60

    async def ask(setting: Setting, question: Question) -> bool | None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Ended("the time limit was reached")
        return only(manifest="hermes")(setting, question)

    course = await learned(ask)
    assert course.setting.changed() == {"manifest": "hermes"}
    assert [choice.outcome for choice in course.choices] == ["preferred", "dropped"]
    assert course.ended == "the time limit was reached"


def test_defaults_match_the_options() -> None:
    """The first incumbent has the default values of toolsim's options, and all values that are compared are valid."""
    from toolsim.proxy.options.table import OPTIONS

    table = {option.name: option for option in OPTIONS}
    assert {name: table[name].default for name in DEFAULTS} == DEFAULTS
    for engine in ("llama.cpp", "vllm", "unknown"):
        for decision in decisions(engine):
            assert all(value in table[name].choices for name, value in decision.values)
            assert set(decision.kinds) <= {question.kind for question in ASKED}


@pytest.mark.parametrize("holds", [True, False])
async def test_other_half_of_the_questions_confirms(holds: bool) -> None:
    """The chosen setting is kept only if it also wins on the other half of the questions."""
    asked = [question for question in ASKED if question.kind in ("one", "two")][:40]
    other = [replace(question, id=f"other-{question.id}") for question in asked]
    better = Setting(manifest="hermes")

    async def ask(setting: Setting, question: Question) -> bool | None:
        return setting == better and (holds or not question.id.startswith("other-"))

    course = await learn([decisions("")[0]], asked, ask, confirming=other)
    assert course.confirmation is not None
    assert course.confirmation.pairs == len(other)
    assert (course.setting, course.unconfirmed) == ((better, None) if holds else (Setting(), better))


async def test_interrupted_confirmation_keeps_the_defaults() -> None:
    """If the confirmation is interrupted, the defaults are kept, and the chosen setting is reported as unconfirmed."""
    asked = [question for question in ASKED if question.kind in ("one", "two")][:40]
    other = [replace(question, id=f"other-{question.id}") for question in asked]

    async def ask(setting: Setting, question: Question) -> bool | None:
        if question.id == other[3].id:
            raise Ended("the time limit was reached")
        return setting.manifest == "hermes"

    course = await learn([decisions("")[0]], asked, ask, confirming=other)
    assert course.ended == "the time limit was reached"
    assert course.setting == Setting()
    assert course.unconfirmed == Setting(manifest="hermes")
