"""Tests for malformed markers. The result must be the correct call or plain text, but never another call.

``support.malformed`` generates the texts. For each call form and kind of change, ``tests/cases/malformed_floors.json``
contains the best results so far. ``make families`` updates the page on model families and the recorded results, which
can only improve.
"""

from __future__ import annotations

import json
from random import Random

import pytest
from support.each import each
from support.effort import some
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
"""Texts from which only the second of two calls is parsed, because no marker shows where the first call ends and prose
begins.
"""


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.form)
def test_documented_calls_are_read(form: Form) -> None:
    """In every form, except those listed as failing, both the text with one call and the text with two calls are parsed
    correctly.
    """
    if form.form in NOT_READ:
        assert not is_read(form), f"{form.form} is read now: take it off known_failures.json"
    else:
        assert is_read(form)


@pytest.mark.ci
@each(("form", "change"), [(form.form, change) for form in FORMS for change in RECORDED[form.form]])
def test_rates_do_not_fall(form: str, change: str) -> None:
    """For each call form and kind of change, the results are not worse than those recorded in
    ``malformed_floors.json``: no fewer texts are parsed correctly, and no more texts lose a call or yield a different
    one.
    """
    found, floor = measured()[form][change], RECORDED[form][change]
    assert found["right"] >= floor["right"]
    assert found["part"] <= floor["part"]
    assert found["other"] <= floor["other"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.form)
@pytest.mark.parametrize("change", [DOUBLED_CLOSING, WHITESPACE])
def test_harmless_changes_are_read(form: Form, change: str) -> None:
    """Doubled closing markers and moved whitespace prevent the correct result for at most 5% of the texts, except in
    the cases listed in ``known_failures.json``.
    """
    found = measured()[form.form].get(change)
    if found is None:
        return
    is_reached = found["right"] >= LIMIT * found.total()
    if f"{form.form} / {change}" in BELOW:
        assert not is_reached, f"{form.form} / {change} is reached now: take it off known_failures.json"
    else:
        assert is_reached, dict(found)


def test_every_form_has_floors_and_changes() -> None:
    """For each call form, results are recorded for every change that applies to the form. Each form's text contains all
    its markers, and each kind of change applies to at least one form.
    """
    assert set(RECORDED) == {form.form for form in FORMS}
    for form in FORMS:
        assert set(RECORDED[form.form]) == set(measured()[form.form])
        assert all(marker in form.text for marker in (*form.opening, *form.closing))
    assert {change for changes in RECORDED.values() for change in changes} == set(CHANGES)


@each("form", FORMS, ids=[form.form for form in FORMS])
def test_splits_make_no_difference(form: Form) -> None:
    """A malformed text is parsed in the same way whether it arrives as a single chunk, character by character, or with
    random splits.
    """
    for case in some(list(malformed(form))[::5]):
        complete = parse(case.text, TOOLS)
        assert streamed(list(case.text), TOOLS) == complete, case.name
        assert streamed(pieces(case.text, case.name), TOOLS) == complete, case.name


@each("seed", some(range(8)))
def test_spliced_texts(seed: int) -> None:
    """Markers, misspelled markers, bodies and prose in any order are parsed without loss, and in the same way wherever
    the text is split.
    """
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
    """When the recorded results are updated, the better of the old and the new figure is kept."""
    now = floors()
    low, high = {"right": 0, "part": 99, "other": 99}, {"right": 99, "part": 0, "other": 0}
    worse = {form: dict.fromkeys(changes, low) for form, changes in now.items()}
    better = {form: dict.fromkeys(changes, high) for form, changes in now.items()}
    assert raised(worse) == raised({}) == now
    assert raised(better) == better
    assert json.loads(dumped(now)) == now


def test_page_is_up_to_date() -> None:
    """The page on model families and the recorded results are up to date, so ``make families`` would change neither
    file.
    """
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
def test_outcomes_are_classified(text: str, expected: str) -> None:
    """The outcome for a text is classified as correct, correct with leftover markup, a different call, or plain
    text.
    """
    assert outcome(Malformed("", "", text, (FIRST,), ""), parse(text, TOOLS)) == expected


@pytest.mark.ci
def test_second_malformed_call_is_never_made_alone() -> None:
    """If two calls are malformed, the second one is not sent to the client unless the first one is."""
    for form in FORMS:
        for case in malformed(form):
            parsed = parse(case.text, TOOLS)
            if outcome(case, parsed) == "part" and case.name not in SECOND_ALONE:
                assert [parsed.calls[0].name, json.loads(parsed.calls[0].arguments)] == FIRST, case.name
