"""Tests for the scripts that the scripted provider uses."""

from __future__ import annotations

import json

from toolsim.eval.scenarios import SCENARIOS
from toolsim.eval.script import SCRIPTS, after, block, live_scripts


def test_every_scenario_has_its_script() -> None:
    """Each scenario has a script, which is found by the scenario's prompt."""
    assert set(SCRIPTS) == {scenario.id for scenario in SCENARIOS}
    assert set(live_scripts()) == {scenario.prompt for scenario in SCENARIOS}


def test_block_contains_the_given_value() -> None:
    """``block`` writes the arguments of a call as JSON. A string is inserted unchanged, even if it is not valid
    JSON.
    """
    whole = block("state_get", {"a": "ü"})
    assert json.loads(whole.removeprefix("<tool_call>").removesuffix("</tool_call>")) == {
        "name": "state_get",
        "arguments": {"a": "ü"},
    }
    assert block("x", "{'a',}") == '<tool_call>{"name":"x","arguments":{\'a\',}}</tool_call>'


def test_script_continues_only_after_the_expected_error() -> None:
    """A scenario's script continues only if the last tool output is the expected error. Otherwise, the script ends
    early, so that the scenario fails.
    """
    reply = after("TYPE_ERROR", "again")
    assert callable(reply)
    assert (reply("… TYPE_ERROR: …"), reply("all well")) == ("again", "Done.")
