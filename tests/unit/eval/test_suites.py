"""Tests for finding suites by name."""

from __future__ import annotations

import pytest
from toolsim.command_line import UsageError
from toolsim.eval.suites import load


@pytest.mark.parametrize("name", ["", "nothing", "bfcl", "bfcl:"])
def test_unknown_suite_is_named(name: str) -> None:
    """The error for an unknown suite lists the available suites."""
    with pytest.raises(UsageError, match="which_output and bfcl:CATEGORY"):
        load(name)


def test_scenarios_suite_contains_the_preset() -> None:
    """The suite ``scenarios`` contains only the selected scenarios, in the given order."""
    assert [case.id for case in load("scenarios", None, "chat_only,happy_path")] == ["chat_only", "happy_path"]


def test_cases_have_the_name_of_their_suite() -> None:
    """Each case contains the name of its suite. The error for an unknown BFCL category names the category."""
    for name in ("questions", "unseen", "which_output"):
        assert {case.suite for case in load(name)} == {name}
    with pytest.raises(UsageError, match="bfcl:nothing"):
        load("bfcl:nothing")
