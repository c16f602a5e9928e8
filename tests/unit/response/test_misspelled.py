"""Misspelled markers: which spellings there are, and how they are found and corrected."""

from __future__ import annotations

import re

import pytest
from toolsim.response.misspelled import Spellings, corrected, misspelled, spelled


@pytest.mark.parametrize("spelling", ["<toolcall>", "<tooll_call>", "<tool_call", "<tool", "_call>", "<tool_c"])
def test_a_marker_has_spellings_with_one_slip(spelling: str) -> None:
    """A character less or twice, no end, one half."""
    assert spelling in misspelled("<tool_call>")


@pytest.mark.parametrize("other", ["<tool_call>", "<to", "ll>", "<tool_calls>", "<tools>", "<tolcal>"])
def test_other_words_are_no_spellings(other: str) -> None:
    """The marker itself, less than a half, other characters, two slips."""
    assert other not in misspelled("<tool_call>")


def test_spellings_are_found_at_a_place() -> None:
    """The longest one counts, exact markers are none, and what may still become one is known."""
    found = Spellings(["<tool_call>", "<tool_calls>"], ["<toolcall>"])
    assert found.at("a <tool_cal> b", 2) == "<tool_cal>"
    assert found["<tool_cal>"] == "<tool_call>"
    assert found.at("<tool_calls>", 0) == "<tool_calls"
    assert found.at("<toolcall>", 0) == "<tool"
    assert found.at("tool", 0) == ""
    assert found.before("x_call>") == "_call>"
    assert found.may_begin("<too")
    assert not found.may_begin("<tex")


def test_a_body_is_corrected() -> None:
    """Closing markers, and openers with a name in them; what is right stays; a half that may be two markers goes."""
    markers, openers = ("</parameter>", "</function>"), (("<function=", ">"), ("<parameter=", ">"))
    right = "<function=f><parameter=k>v</parameter></function>"
    for wrong in (
        right,
        "<funtion=f><parameter=k>v</parameter></function>",
        "<function=f><paramter=k>v</paramter></function",
        "<function=f>ter=k>v</para</function>",
    ):
        assert corrected(wrong, markers, openers) == right
    assert corrected("<arg_key>k_key>", ("<arg_key>", "</arg_key>")) == "<arg_key>k"


def test_a_pattern_matches_the_longest_spelling() -> None:
    """Only spellings that start and end as asked are matched."""
    assert re.fullmatch(spelled("[ARGS]"), "[ARG]")
    assert re.match(spelled("[ARGS]"), "[ARGS]]]")[0] == "[ARGS]]"  # type: ignore[index]
    assert not re.fullmatch(spelled("<parameter=", "<", "="), "meter=")
    assert re.fullmatch(spelled("<parameter=", ends="="), "meter=")
