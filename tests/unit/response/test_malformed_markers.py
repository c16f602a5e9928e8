"""Malformed markers: the right call or plain text, never another call; and the page of families that shows it.

``support.malformed`` makes the texts, ``tests/cases/malformed_floors.json`` has what is reached of each form and kind
of change. The floors never sink: ``make families`` raises them.
"""

from __future__ import annotations

import json
from random import Random

import pytest
from support.each import each
from support.families import FLOORS, PAGE, dumped, floors, load, measured, page, raised
from support.library import pieces, streamed
from support.malformed import (
    CHANGES,
    DOUBLED_CLOSING,
    FIRST,
    FORMS,
    TOOLS,
    WHITESPACE,
    Form,
    Malformed,
    is_read,
    malformed,
    outcome,
)
from toolsim.parsing import parse
from toolsim.response.misspelled import misspelled

NOT_READ: list[str] = load("known_failures")["forms"]
BELOW: list[str] = load("known_failures")["forms_below_95_percent"]
RECORDED = json.loads(FLOORS.read_text(encoding="utf-8"))
LIMIT = 0.95
SECOND_ALONE = ("[TOOL_CALLS] with [ARGS] / 2 / opening marker halved / [TOOL_CALLS] at 0 second half",)
"""What is left of the first call has no marker by which it could be told from text."""


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.form)
def test_documented_calls_are_read(form: Form) -> None:
    """Exactly the forms that are not listed as failing are read, with one call and with two."""
    if form.form in NOT_READ:
        assert not is_read(form), f"{form.form} is read now: take it off known_failures.json"
    else:
        assert is_read(form)


@each(("form", "change"), [(form.form, change) for form in FORMS for change in RECORDED[form.form]])
def test_no_rate_falls(form: str, change: str) -> None:
    """Of each form and kind of change as many texts are right as before, and no more are one of two or another call."""
    found, floor = measured()[form][change], RECORDED[form][change]
    assert found["right"] >= floor["right"]
    assert found["part"] <= floor["part"]
    assert found["other"] <= floor["other"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.form)
@pytest.mark.parametrize("change", [DOUBLED_CLOSING, WHITESPACE])
def test_harmless_changes_are_read(form: Form, change: str) -> None:
    """A doubled closing marker or moved whitespace costs at most one call in twenty, except where listed."""
    found = measured()[form.form].get(change)
    if found is None:
        return
    is_reached = found["right"] >= LIMIT * found.total()
    if f"{form.form} / {change}" in BELOW:
        assert not is_reached, f"{form.form} / {change} is reached now: take it off known_failures.json"
    else:
        assert is_reached, dict(found)


def test_every_form_is_changed_in_every_way() -> None:
    """Each form has its floors, each marker is in its texts, and no kind of change is without texts."""
    assert set(RECORDED) == {form.form for form in FORMS}
    for form in FORMS:
        assert set(RECORDED[form.form]) == set(measured()[form.form])
        assert all(marker in form.text for marker in (*form.opening, *form.closing))
    assert {change for changes in RECORDED.values() for change in changes} == set(CHANGES)


@each("form", FORMS, ids=[form.form for form in FORMS])
def test_splits_make_no_difference(form: Form) -> None:
    """Every fifth text is read letter by letter and at random splits as it is read at once."""
    for case in list(malformed(form))[::5]:
        complete = parse(case.text, TOOLS)
        assert streamed(list(case.text), TOOLS) == complete, case.name
        assert streamed(pieces(case.text, case.name), TOOLS) == complete, case.name


@each("seed", range(8))
def test_spliced_texts(seed: int) -> None:
    """Markers, misspelled ones, bodies and prose in any order: no split makes a difference, and nothing is lost."""
    random = Random(seed)
    markers = [marker for form in FORMS for marker in (*form.opening, *form.closing)]
    bodies = [part for form in FORMS for part in form.markers.split(form.two)]
    others = [form.text for form in FORMS] + [
        "\n",
        " ",
        "Hello ",
        "`",
        "```json\n",
        "> ",
        "<|im_end|>",
        "For example:\n",
    ]
    for _ in range(60):
        slips = sorted(misspelled(random.choice(markers)))
        parts = [random.choice(random.choice((markers, bodies, others, slips or others))) for _ in range(6)]
        text = "".join(parts)
        complete = parse(text, TOOLS)
        assert streamed(list(text), TOOLS) == complete, text
        assert streamed(pieces(text, text), TOOLS) == complete, text
        assert complete.calls or complete.prose == text


def test_floors_never_sink() -> None:
    """What is written keeps the better of the old and the new figures."""
    now = floors()
    low, high = {"right": 0, "part": 99, "other": 99}, {"right": 99, "part": 0, "other": 0}
    worse = {form: dict.fromkeys(changes, low) for form, changes in now.items()}
    better = {form: dict.fromkeys(changes, high) for form, changes in now.items()}
    assert raised(worse) == raised({}) == now
    assert raised(better) == better
    assert json.loads(dumped(now)) == now


def test_the_page_is_current() -> None:
    """``make families`` would change neither the page nor the floors."""
    assert PAGE.read_text(encoding="utf-8") == page(), "run make families"
    assert dumped(raised(RECORDED)) == FLOORS.read_text(encoding="utf-8"), "run make families"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"name": "write", "arguments": {"path": "a.txt", "lines": 3}}</tool_call>', "right"),
        ('<tool_call>{"name": "write", "arguments": {"path": "a.txt", "lines": 3}}</tool_call> </x>', "leftover"),
        ('<tool_call>{"name": "write", "arguments": {"path": "b.txt"}}</tool_call>', "other"),
        ("nothing", "text"),
    ],
)
def test_outcomes(text: str, expected: str) -> None:
    """Each outcome is told from the others."""
    assert outcome(Malformed("", "", text, (FIRST,), ""), parse(text, TOOLS)) == expected


def test_one_of_two() -> None:
    """Of two calls only the first may run alone, since the client has it: a second one is never without the first."""
    for form in FORMS:
        for case in malformed(form):
            parsed = parse(case.text, TOOLS)
            if outcome(case, parsed) == "part" and case.name not in SECOND_ALONE:
                assert [parsed.calls[0].name, json.loads(parsed.calls[0].arguments)] == FIRST, case.name
