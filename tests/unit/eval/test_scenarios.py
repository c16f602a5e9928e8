"""Tests for the evaluation scenarios, with simulated models that act either correctly or incorrectly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from toolsim.command_line import UsageError
from toolsim.eval.case import Verdict
from toolsim.eval.runtime.turn import Answer, Call, Request
from toolsim.eval.scenarios import PRESETS, SCENARIOS, ScenarioSettings, case, select
from toolsim.eval.workspace import WORKSPACE_ID

BY_ID = {scenario.id: scenario for scenario in SCENARIOS}


def get(id: str = "1") -> Call:
    return Call(id, "state_get", json.dumps({"workspace_id": WORKSPACE_ID}))


def patch(path: str, value: Any, id: str = "2") -> Call:
    return Call(id, "state_patch", json.dumps({"workspace_id": WORKSPACE_ID, "path": path, "value": value}))


async def play(scenario: str, *turns: tuple[Call, ...] | str, settings: ScenarioSettings | None = None) -> Verdict:
    answers = [Answer(turn) if isinstance(turn, str) else Answer("", turn, "tool_calls") for turn in turns]

    async def send(request: Request) -> Answer:
        return answers.pop(0)

    return await case(BY_ID[scenario], settings or ScenarioSettings()).play(send)


TITLE = patch("/draft/title", "Quarterly report")


@pytest.mark.parametrize("scenario", ["happy_path", "missing_workspace_id"])
async def test_happy_path_requires_read_and_patch(scenario: str) -> None:
    """The happy_path and missing_workspace_id scenarios pass only if the model reads the state, patches the title and
    then answers with exactly the required text.
    """
    assert (await play(scenario, (get(),), (TITLE,), "Done.")).ok
    assert (await play(scenario, (TITLE,), "Done.")).label == "wrong_state"
    assert (await play(scenario, (get(),), "Done.")).label == "wrong_state"
    assert (await play(scenario, (get(),), (TITLE,), "All done!")).label == "wrong_final_text"
    assert (await play(scenario, "Done.")).label == "no_call"


async def test_missing_id_is_recovered_from_the_error() -> None:
    """If the model uses a missing or incorrect workspace ID, the scenario still passes if its next call contains the ID
    from the error.
    """
    without, wrong = Call("0", "state_get", "{}"), Call("0", "state_get", '{"workspace_id": "main"}')
    for first in (without, wrong):
        assert (await play("missing_workspace_id", (first,), (get(),), (TITLE,), "Done.")).ok


async def test_type_error_must_be_made_and_corrected() -> None:
    """The type_error_recovery scenario passes only if the model first sends a value of the wrong type and then corrects
    it.
    """
    wrong, right = patch("/draft/priority", "high"), patch("/draft/priority", 3, "3")
    assert (await play("type_error_recovery", (wrong,), (right,), "Done.")).ok
    assert (await play("type_error_recovery", (wrong,), "Done.")).label == "type_coercion"
    assert (await play("type_error_recovery", (right,), "Done.")).label == "wrong_state"


async def test_long_arguments_are_refused_and_shortened() -> None:
    """The long_arguments_guard scenario passes only if the model first sends the entire text, which is too long, and
    then a shortened text.
    """
    long = patch("/draft/body", BY_ID["long_arguments_guard"].prompt.partition("this text: ")[2].partition("\n")[0])
    short = patch("/draft/body", "The quarter went well and the team grew in every region that we serve.", "3")
    assert (await play("long_arguments_guard", (long,), (short,), "Done.")).ok
    assert (await play("long_arguments_guard", (short,), "Done.")).label == "wrong_state"
    assert not (await play("long_arguments_guard", (long,), "Done.")).ok


async def test_chat_only_must_call_no_tool() -> None:
    """The chat_only scenario passes only if the model answers with exactly the required text and does not
    call a tool.
    """
    assert (await play("chat_only", "Done.")).ok
    assert (await play("chat_only", "Sure! Done.")).label == "wrong_final_text"
    assert (await play("chat_only", (get(),))).label == "needless_call"


async def test_parallel_calls_must_share_a_turn() -> None:
    """The happy_path_parallel scenario passes if both calls are in the same turn. If they are in separate turns, the
    label is parallel_collapse.
    """
    assert (await play("happy_path_parallel", (get(), TITLE), "Done.")).ok
    assert (await play("happy_path_parallel", (get(),), (TITLE,), "Done.")).label == "parallel_collapse"


async def test_allowlist_applies_to_scenarios() -> None:
    """The allowlist limits the tools of a scenario. A scenario without tools is not affected."""
    settings = ScenarioSettings(allowed=("state_get",))
    verdict = await play("happy_path", (get(),), (TITLE,), "Done.", settings=settings)
    assert verdict.label == "wrong_tool"
    assert (await play("chat_only", "Done.", settings=settings)).ok


def test_presets_and_lists() -> None:
    """A list of scenarios can contain presets and scenario IDs. Duplicates are removed, and an unknown name is an
    error.
    """
    assert PRESETS["default"] == tuple(BY_ID)[:5]
    ids = [scenario.id for scenario in select("default,happy_path_parallel,chat_only")]
    assert ids == list(BY_ID)
    assert [scenario.id for scenario in select("all")] == ids
    with pytest.raises(UsageError, match="sad_path"):
        select("happy_path,sad_path")


def test_prompts_are_distinct() -> None:
    """All scenarios have different prompts, because the scripted provider recognizes a scenario by its prompt."""
    assert len({scenario.prompt for scenario in SCENARIOS}) == len(SCENARIOS)
