"""Sampling profiles."""

from __future__ import annotations

import pytest
from toolsim.command_line import UsageError
from toolsim.eval.catalog import Model, select
from toolsim.eval.profiles import PROFILES
from toolsim.eval.profiles import select as select_profiles

BY_ID = {profile.id: profile for profile in PROFILES}


def test_the_five_profiles() -> None:
    """Reports are compared by these."""
    assert list(BY_ID) == ["default", "recommended", "creative", "conversation", "tool_calling"]


def test_what_is_left_to_the_server_is_not_sent() -> None:
    """Only the values that a profile sets are request options."""
    model = select("smollm2")[0]
    assert BY_ID["default"].sampling(model) == {"temperature": 0.0}
    assert BY_ID["recommended"].sampling(model) == {"temperature": 0.2, "top_p": 0.9}


def test_applicability() -> None:
    """tool_calling is for models with tools, recommended for those whose makers recommend something."""
    plain, tools = Model("a", "a", ""), Model("b", "b", "", ("tools",), recommended={"top_p": 1})
    assert [profile.id for profile in PROFILES if profile.applies(plain)] == ["default", "creative", "conversation"]
    assert all(profile.applies(tools) for profile in PROFILES)


def test_selection() -> None:
    """By id and tag, with exclusions; an unknown word is an error."""
    assert [profile.id for profile in select_profiles("chat,default")] == ["creative", "conversation", "default"]
    assert [profile.id for profile in select_profiles("*,!chat,!card")] == ["default", "tool_calling"]
    with pytest.raises(UsageError, match="nothing"):
        select_profiles("default,nothing")
