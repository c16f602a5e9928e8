"""Tests for the sampling profiles."""

from __future__ import annotations

import pytest
from toolsim.command_line import UsageError
from toolsim.eval.catalog import Model, select
from toolsim.eval.profiles import PROFILES
from toolsim.eval.profiles import select as select_profiles

BY_ID = {profile.id: profile for profile in PROFILES}


def test_five_profiles_do_not_change() -> None:
    """The IDs and the order of the five sampling profiles must not change, because reports are compared by profile."""
    assert list(BY_ID) == ["default", "recommended", "creative", "conversation", "tool_calling"]


def test_only_set_sampling_values_are_sent() -> None:
    """Only sampling values that a profile sets are sent. For all others, the server's defaults apply."""
    model = select("smollm2")[0]
    assert BY_ID["default"].sampling(model) == {"temperature": 0.0}
    assert BY_ID["recommended"].sampling(model) == {"temperature": 0.2, "top_p": 0.9}


def test_applicability() -> None:
    """The ``tool_calling`` profile applies only to models with tools, and the ``recommended`` profile only to models
    with recommended values.
    """
    plain, tools = Model("a", "a", ""), Model("b", "b", "", ("tools",), recommended={"top_p": 1})
    assert [profile.id for profile in PROFILES if profile.applies(plain)] == ["default", "creative", "conversation"]
    assert all(profile.applies(tools) for profile in PROFILES)


def test_selection() -> None:
    """Sampling profiles are selected or excluded by ID or tag. An unknown ID or tag is an error."""
    assert [profile.id for profile in select_profiles("chat,default")] == ["creative", "conversation", "default"]
    assert [profile.id for profile in select_profiles("*,!chat,!card")] == ["default", "tool_calling"]
    with pytest.raises(UsageError, match="nothing"):
        select_profiles("default,nothing")
