"""Tests for misspelled markers: the accepted spellings, and how they are found and corrected."""

from __future__ import annotations

import re

import pytest
from toolsim.response.misspelled import Spellings, corrected, misspelled, spelled


@pytest.mark.parametrize("spelling", ["<toolcall>", "<tooll_call>", "<tool_call", "<tool", "_call>", "<tool_c"])
def test_spellings_with_one_slip_are_accepted(spelling: str) -> None:
    """Spellings with one slip are accepted: a missing or doubled character, a missing end, or half a marker."""
    assert spelling in misspelled("<tool_call>")


@pytest.mark.parametrize("other", ["<tool_call>", "<to", "ll>", "<tool_calls>", "<tools>", "<tolcal>"])
def test_other_spellings_are_not_accepted(other: str) -> None:
    """The marker itself, less than half of it, other characters and two slips are not accepted spellings."""
    assert other not in misspelled("<tool_call>")


def test_longest_spelling_at_a_place_counts() -> None:
    """The longest spelling takes precedence, exact markers are excluded, and possible beginnings of a spelling are
    recognized."""
    found = Spellings(["<tool_call>", "<tool_calls>"], ["<toolcall>"])
    assert found.at("a <tool_cal> b", 2) == "<tool_cal>"
    assert found["<tool_cal>"] == "<tool_call>"
    assert found.at("<tool_calls>", 0) == "<tool_calls"
    assert found.at("<toolcall>", 0) == "<tool"
    assert found.at("tool", 0) == ""
    assert found.before("x_call>") == "_call>"
    assert found.may_begin("<too")
    assert not found.may_begin("<tex")


def test_body_is_corrected() -> None:
    """Misspelled opening and closing markers are corrected, correct text is kept, and half markers that could belong to
    more than one marker are removed.
    """
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


def test_pattern_matches_the_longest_spelling() -> None:
    """The pattern matches the longest spelling, and only spellings with the specified start and end."""
    assert re.fullmatch(spelled("[ARGS]"), "[ARG]")
    assert re.match(spelled("[ARGS]"), "[ARGS]]]")[0] == "[ARGS]]"  # type: ignore[index]
    assert not re.fullmatch(spelled("<parameter=", "<", "="), "meter=")
    assert re.fullmatch(spelled("<parameter=", ends="="), "meter=")
