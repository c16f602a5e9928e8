"""Tests for lookups, in which the model requests the complete catalog entry of a tool. The client receives a single
answer without the lookup.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.answers import read
from support.each import each
from support.rounds import Script, job_of, run
from toolsim.core.policy import ApiName, Policy
from toolsim.rounds.round_planner import RoundLimits, may_take_rounds
from toolsim.rounds.runner import RunnerJob
from toolsim.wire.apis import CHAT

FIND = '<tool_call>{"name":"find_tools","arguments":{"names":["add"]}}</tool_call>'
CALL = '<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'
ADD = ["call", "add", '{"a":1}']
NUMBER = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}
ECHO = {"type": "function", "function": {"name": "echo"}}
POLICY = Policy(catalog_budget=10)
API_NAMES: tuple[ApiName, ...] = ("chat", "responses")


def play(
    *texts: str | None, client: ApiName = "chat", stream: bool = True, policy: Policy = POLICY, **more: Any
) -> tuple[Any, Script, RunnerJob]:
    script = Script(texts, "chat")
    job = job_of(script, client, stream, policy, more.pop("bounds", RoundLimits()), **more)
    status, chunks = asyncio.run(run(job))
    return read(client, stream, chunks, status), script, job


@each("stream", [True, False])
@each("client", API_NAMES)
@each("find", [FIND, FIND.partition(">")[2].partition("</")[0], f"```json\n{FIND}\n```"])
def test_looked_up_tool_is_called(client: ApiName, stream: bool, find: str) -> None:
    """After a lookup in any call form, the model sees the tool's complete entry. The client receives only the call
    that follows.
    """
    seen, script, job = play(find, CALL, client=client, stream=stream)
    assert seen.items == [ADD]
    first, second = script.asked
    assert "- echo" in str(first)
    assert '"a": <number>' not in str(first)
    assert '"a": <number>' in str(second[-1])
    assert [each["role"] for each in second] == [*(each["role"] for each in first), "assistant", "user"]
    assert job.report.retries == ["find_tools"]
    assert job.report.calls == ["add"]
    assert job.report.parse_failures == []


@pytest.mark.parametrize("client", API_NAMES)
@pytest.mark.parametrize("stream", [True, False])
def test_earlier_text_and_calls_are_kept(client: ApiName, stream: bool) -> None:
    """Text and calls before a lookup are sent to the client, followed by the answer of the next round."""
    echo = '<tool_call>{"name":"echo","arguments":{"x":2}}</tool_call>'
    seen, _, _ = play(f"Well.\n{echo}\n{FIND}", CALL, client=client, stream=stream)
    assert seen.items == [["text", "Well.\n"], ["call", "echo", '{"x":2}'], ADD]


@pytest.mark.parametrize("client", API_NAMES)
def test_second_opinion_covers_only_the_looked_up_tool(client: ApiName) -> None:
    """The prompt for the second opinion on a looked-up tool contains only that tool and the user's request. No opinion
    is requested on the lookup itself.
    """
    seen, script, job = play(
        FIND, CALL, "no", "no", "Words.", client=client, policy=replace(POLICY, second_opinion="on")
    )
    assert seen.items == [["text", "Words."]]
    assert "A function: add(a)" in str(script.asked[2])
    assert "A request: hi" in str(script.asked[2])
    assert job.report.retries == ["find_tools", "SECOND_OPINION:add"]


def test_repeated_lookups_show_all_entries() -> None:
    """After three lookups, the prompt ends with the entries of all tools that were looked up. A fourth lookup is
    treated as a call to an unknown tool.
    """
    tools = [{"type": "function", "function": {"name": "add", "parameters": NUMBER}}, ECHO]
    seen, script, job = play(FIND, FIND, FIND, "Hm. " + FIND, tools=tools)
    assert seen.items == [["text", "Hm. " + FIND]]
    assert not any('"a": <number>' in str(asked[0]) for asked in script.asked)
    assert '"a": <number>' in str(script.asked[3][-1]).partition("Go on now")[2]
    assert "UNKNOWN_TOOL:find_tools" in job.report.parse_failures


def test_lookups_and_retries_are_counted_separately() -> None:
    """A lookup does not count as one of the permitted retries."""
    bad = CALL.replace("1", '"x"')
    seen, _, job = play(FIND, bad, CALL, policy=Policy(catalog_budget=10, retry=1))
    assert seen.items == [ADD]
    assert job.report.retries == ["find_tools", "SCHEMA_MISMATCH:add"]


@pytest.mark.parametrize("stream", [True, False])
def test_lookup_without_remaining_time_is_an_error(stream: bool) -> None:
    """If the time limit does not allow another round after a lookup, the client receives an error instead of an empty
    answer.
    """
    assert play(FIND, stream=stream, bounds=RoundLimits(seconds=1e-9))[0].error == "no_round_left"


def test_backend_failure_after_a_lookup_is_reported() -> None:
    """If the backend fails after a lookup, the client receives the backend's error."""
    job = job_of(Script((FIND, None), "chat"), "chat", False, POLICY, RoundLimits())
    assert asyncio.run(run(job))[0] == 503
    assert job.report.calls == []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "guess",
    [
        '<tool_call>{"name":"add","arguments":{"x":1}}</tool_call>',
        '```json\n{"name": "add", "arguments": {"x": 1}}\n```',
        '{"name": "add", "arguments": {"a": "one"}}',
    ],
)
def test_invalid_guess_becomes_a_lookup(guess: str, stream: bool) -> None:
    """If the model calls a tool whose schema it has not seen, and the arguments are invalid, the call is treated as a
    lookup.
    """
    seen, script, job = play(guess, CALL, stream=stream)
    assert seen.items == [ADD]
    assert '"a": <number>' in str(script.asked[1][-1])
    assert job.report.retries == ["find_tools"]
    assert play(CALL, stream=stream)[0].items == [ADD]


def test_tool_called_before_is_judged_as_usual() -> None:
    """If a tool has been called before, the model has already seen its catalog entry. An invalid call to it is then an
    error instead of a lookup.
    """
    call = {"id": "call_001", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_001", "content": "18"},
    ]
    bad = '<tool_call>{"name":"add","arguments":{"x":1}}</tool_call>'
    assert play(bad, messages=messages)[0].error == "invalid_tool_call"
    assert play(bad, bad)[0].error == "invalid_tool_call"


def test_lookup_with_invalid_arguments_is_text() -> None:
    odd = FIND.replace('["add"]', '"add"').replace("names", "name")
    assert play(odd)[0].items == [["text", odd]]


def test_requests_that_can_have_further_rounds() -> None:
    """A lookup can take a further round only if the request's tools exceed the catalog budget, calls are allowed, and
    the client requests a single choice.
    """
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 100}}
    other = {"type": "function", "function": {"name": "g"}}
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [tool, other]}
    assert may_take_rounds(CHAT.read(body), Policy(catalog_budget=100))
    assert not may_take_rounds(CHAT.read(body), Policy(catalog_budget=1000))
    assert not may_take_rounds(CHAT.read(body | {"tool_choice": "none"}), Policy(catalog_budget=100))
    assert not may_take_rounds(CHAT.read(body | {"n": 2}), Policy(catalog_budget=100))
