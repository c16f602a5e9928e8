"""Tests for misspelled markers: which spellings are accepted, and how misspellings are found and corrected."""

from __future__ import annotations

import re

import pytest
from toolsim.response.misspelled import Spellings, corrected, misspelled, spelled


@pytest.mark.parametrize("spelling", ["<toolcall>", "<tooll_call>", "<tool_call", "<tool", "_call>", "<tool_c"])
def test_spellings_with_one_slip_are_accepted(spelling: str) -> None:
    """A misspelled marker is recognized if it has a single error: a character is missing or doubled, or the marker's
    end or one half is missing.
    """
    assert spelling in misspelled("<tool_call>")


@pytest.mark.parametrize("other", ["<tool_call>", "<to", "ll>", "<tool_calls>", "<tools>", "<tolcal>"])
def test_other_spellings_are_not_accepted(other: str) -> None:
    """The correct marker is not a misspelling. Neither is text that contains a wrong character, has two errors, or is
    less than half of the marker.
    """
    assert other not in misspelled("<tool_call>")


def test_longest_spelling_at_a_place_counts() -> None:
    """If several misspellings match, the longest takes precedence. An exact marker does not count as misspelled."""
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
    """Misspelled opening and closing markers are corrected, and correct text is kept. Half a marker is removed if it
    could belong to more than one marker.
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
    """The pattern for a misspelled marker matches the longest possible spelling. If a start or an end is specified, a
    spelling must include it.
    """
    assert re.fullmatch(spelled("[ARGS]"), "[ARG]")
    assert re.match(spelled("[ARGS]"), "[ARGS]]]")[0] == "[ARGS]]"  # type: ignore[index]
    assert not re.fullmatch(spelled("<parameter=", "<", "="), "meter=")
    assert re.fullmatch(spelled("<parameter=", ends="="), "meter=")
