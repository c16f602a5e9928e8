"""A catalogue that the backend's own context holds is sent once; whenever that is uncertain it is sent again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from toolsimlib.plan import HeldCatalogue, Policy
from toolsimlib.report import Report
from toolsimlib.request.catalogue import catalogue_of, digest_of
from toolsimlib.request.manifest import HEADING, reminder
from toolsimlib.request.rewrite import Rewritten, rewrite_request

TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}}
OTHER = {"type": "function", "name": "get_time", "parameters": {"type": "object"}}


def rewritten(held: Mapping[str, HeldCatalogue] | None = None, policy: Policy | None = None, **body: Any) -> Rewritten:
    request = json.dumps({"model": "m", "input": "Hello", "tools": [TOOL], **body}).encode()
    how = policy or Policy()
    made = rewrite_request(
        "responses", "/v1/responses", request, how, output_mode=None, report=Report(), held=held or {}
    )
    assert made is not None
    return made


def is_shown(made: Rewritten) -> bool:
    return HEADING in made.body.decode()


FIRST = rewritten().plan.held
assert FIRST is not None
AFTER = {"held": {"r1": FIRST}, "previous_response_id": "r1"}


def test_the_same_catalogue_is_not_sent_again() -> None:
    """The model gets a reminder instead, the plan still has the catalogue and its tools, and so does the next turn."""
    made = rewritten(**AFTER)
    assert not is_shown(made)
    assert reminder(made.plan.choice, sentinel="tool_call") in json.loads(made.body)["input"][-1]["content"][0]["text"]
    assert made.plan.held == FIRST
    held = FIRST._replace(answer="r1")
    assert rewritten({"r2": held}, previous_response_id="r2").plan.held == held
    assert [tool.name for tool in made.plan.tools] == ["get_weather"]
    output = [{"type": "function_call_output", "call_id": "c", "output": "18"}]
    assert not is_shown(rewritten(**AFTER, input=output))


@pytest.mark.parametrize(
    "changes",
    [
        {"tools": [TOOL, OTHER]},
        {"tools": [{**TOOL, "description": "Other words."}]},
        {"tool_choice": "required"},
        {"parallel_tool_calls": False},
        {"text": {"format": {"type": "json_object"}}},
        {"policy": Policy(manifest="schemas")},
        {"policy": Policy(sentinel="other")},
        {"policy": Policy(manifest_role="user")},
    ],
    ids=str,
)
def test_a_changed_catalogue_is_sent_again(changes: dict[str, Any]) -> None:
    """A tool, the choice, the answer format, an option: from then on the context holds the new catalogue."""
    made = rewritten(**AFTER, **changes)
    assert is_shown(made)
    assert made.plan.held not in (None, FIRST)
    assert made.plan.held is not None
    again = rewritten({"r2": made.plan.held}, **{"previous_response_id": "r2", **changes})
    assert not is_shown(again)


@pytest.mark.parametrize(
    "changes",
    [
        {"previous_response_id": "r2"},
        {"previous_response_id": None},
        {"held": {}},
        {"truncation": "auto"},
        {"context_management": [{"type": "compaction"}]},
        {"conversation": "conv_1"},
    ],
    ids=str,
)
def test_in_doubt_the_catalogue_is_sent(changes: dict[str, Any]) -> None:
    """Another answer, or none, a forgotten one, a context that may have lost its beginning or is shared."""
    assert is_shown(rewritten(**{**AFTER, **changes}))


@pytest.mark.parametrize(
    "changes", [{"store": False}, {"truncation": "auto"}, {"context_management": [{}]}, {"conversation": "c"}], ids=str
)
def test_what_may_not_stay_is_not_remembered(changes: dict[str, Any]) -> None:
    """A context that is not stored, or may be incomplete."""
    assert rewritten(**changes).plan.held is None


def test_over_a_chat_backend_nothing_is_held() -> None:
    """It stores nothing; and a backend with native tools gets no catalogue."""
    assert rewritten(policy=Policy(backend="chat")).plan.held is None
    assert rewritten(policy=Policy(mode="native")).plan.held is None


def test_a_round_gets_the_catalogue_each_time() -> None:
    """The client knows only one of the model's several turns."""
    body = json.dumps({"model": "m", "input": "x", "tools": [TOOL], "previous_response_id": "r1"}).encode()
    made = rewrite_request(
        "responses", "/r", body, Policy(), output_mode=None, report=Report(), is_round=True, held={"r1": FIRST}
    )
    assert made is not None
    assert (is_shown(made), made.plan.held) == (True, None)


def test_a_recording_shows_what_was_sent() -> None:
    """At replay, only the recording knows it."""
    body = json.dumps({"model": "m", "input": "x", "tools": [TOOL], "previous_response_id": "r1"}).encode()
    made = rewrite_request(
        "responses", "/v1/responses", body, Policy(), output_mode=None, report=Report(), was_held=True
    )
    assert made is not None
    assert not is_shown(made)


def test_digests() -> None:
    """They distinguish texts and roles; without tools there is no text."""
    assert len({digest_of(text, role) for text in "ab" for role in ("user", "system")}) == 4
    made = rewritten(tool_choice="none")
    assert catalogue_of(made.plan) == ""
    assert made.plan.held is None
