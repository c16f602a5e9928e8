"""Tests for the runner, which merges the answers of several rounds. The official OpenAI client parses the merged
answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import rounds
from support.answers import read
from support.rounds import Script, job_of, run
from toolsim.core.policy import ApiName, Policy
from toolsim.rounds.round_planner import ANSWER_NOW, RoundLimits
from toolsim.rounds.runner import PROVIDER_ERROR, ROUND_FAILED, answer

GOOD = '<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'
BAD = '<tool_call>{"name":"add","arguments":{"a":"x"}}</tool_call>'
UNKNOWN = '<tool_call>{"name":"sub","arguments":{"a":1}}</tool_call>'
HALF = '<tool_call>{"name":"add","argume'
RETRY = Policy(retry=3)
API_NAMES: tuple[ApiName, ...] = ("chat", "responses")
ADD = ["call", "add", '{"a":1}']
play = partial(rounds.play, policy=RETRY)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("backend", API_NAMES)
@pytest.mark.parametrize("client", API_NAMES)
def test_retried_call_is_returned(client: ApiName, backend: ApiName, stream: bool) -> None:
    """After an invalid call, the model sees the reason and tries again. The client receives the valid call and the
    total usage of both rounds.
    """
    seen, script, job = play("Well.\n" + BAD, GOOD, client=client, backend=backend, stream=stream)
    assert seen.items == [["text", "Well.\n"], ADD]
    assert len(script.asked) == 2
    *_, words, reply = script.asked[1]
    assert "Well.\\n<tool_call>" in str(words).replace("\n", "\\n")
    assert "/a: got string, expected number" in str(reply)
    assert job.report.rounds == 2
    assert job.report.retries == ["SCHEMA_MISMATCH:add"]
    assert job.report.calls == ["add"]
    assert job.report.tool_call_ids == seen.ids
    assert seen.usage == (7 if stream else 14)  # A stream that is cut off does not report its usage.
    assert job.report.error is None


@pytest.mark.parametrize(
    ("texts", "items"),
    [
        ((UNKNOWN, HALF, GOOD), [ADD]),
        ((GOOD + UNKNOWN, GOOD + GOOD.replace("1", "2")), [ADD, ["call", "add", '{"a":2}']]),
        (("One. " + UNKNOWN, "Two."), [["text", "One. \n\nTwo."]]),
        ((HALF + "|length", 'nts":{"a":1}}</tool_call>'), [ADD]),
        ((HALF + "|length", GOOD), [ADD]),
        ((HALF + "|length", 'nts":{"a"|length', ":1}}</tool_call>"), [ADD]),
        ((UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN), [["text", UNKNOWN]]),
        ((UNKNOWN, None), [["text", UNKNOWN]]),
        (("One. " + UNKNOWN, None), [["text", "One. " + UNKNOWN]]),
    ],
)
def test_emitted_output_is_not_retracted(texts: tuple[str | None, ...], items: list[Any]) -> None:
    """Output that has been sent to the client is not retracted. If an invalid call is never corrected, it is sent as
    text.
    """
    for client in API_NAMES:
        for stream in (True, False):
            # The tools are not strict, so an invalid call becomes text.
            script = Script(texts, "responses")
            job = job_of(script, client, stream, RETRY, RoundLimits())
            body: Any = job.body
            for tool in body["tools"]:
                tool.get("function", tool)["strict"] = False
            seen = read(client, stream, asyncio.run(run(job))[1])
            assert seen.items == items, (client, stream)


def test_repeated_strict_violation_is_an_error() -> None:
    """If a strict schema is still violated after the last retry, the answer ends with an error."""
    seen, script, job = play(BAD, BAD, policy=Policy(retry=1))
    assert seen.error == "invalid_tool_call"
    assert len(script.asked) == 2
    assert job.report.error == "invalid_tool_call"


@pytest.mark.parametrize("bounds", [RoundLimits(rounds=2), RoundLimits(seconds=1e-9), RoundLimits(text_bytes=1)])
def test_limits_prevent_a_retry(bounds: RoundLimits) -> None:
    """If the limit on rounds, time or text is reached, the call is not retried, and the client receives the error that
    the call caused.
    """
    seen, script, _ = play("Well. " + BAD, BAD, GOOD, bounds=bounds)
    assert seen.error == "invalid_tool_call"
    assert len(script.asked) == (2 if bounds.rounds == 2 else 1)


def test_failed_retry_returns_the_first_output() -> None:
    """If a retry fails, the client receives the result of the first round, and the report contains a warning."""
    seen, _, job = play(BAD, None)
    assert seen.error == "invalid_tool_call"
    assert ROUND_FAILED in job.report.warnings


def test_refusal_of_the_first_round_is_the_answer() -> None:
    """If the backend refuses the first round, the client receives the backend's status and response body."""
    script = Script([None], "chat")
    job = job_of(script, "chat", True, RETRY, RoundLimits())
    assert asyncio.run(run(job)) == (503, [b'{"error": {}}'])
    assert len(script.asked) == 1
    assert ROUND_FAILED not in job.report.warnings


RELAXED = Policy(tool_use_mode="relaxed")


def test_provider_error_is_retried_without_tools() -> None:
    """With ``tool_use_mode=relaxed``, an error from the backend causes one retry without tools. If the retry fails as
    well, the error is final.
    """
    seen, script, job = play(None, "So be it.", policy=RELAXED)
    assert seen.items == [["text", "So be it."]]
    assert ["CLIENT TOOL CATALOG" in str(messages) for messages in script.asked] == [True, False]
    assert job.report.retries == [PROVIDER_ERROR]
    assert job.report.error is None
    _, script, _ = play(None, None, policy=RELAXED, client="chat")
    assert len(script.asked) == 2
    _, script, _ = play(BAD, policy=RELAXED)
    assert len(script.asked) == 1
    _, script, _ = play(None, policy=replace(RELAXED, tool_use_mode=""), client="chat")
    assert len(script.asked) == 1


def test_missing_required_call_is_retried() -> None:
    """If the model writes text although a call is required, the client receives the text, and a retry requests the
    call.
    """
    seen, script, _ = play("I would rather not.", GOOD, tool_choice="required")
    assert seen.items == [["text", "I would rather not."], ADD]
    assert "NO_CALL" in str(script.asked[1][-1])
    enforced = replace(RETRY, tool_use_mode="enforced")
    assert play("No.", GOOD, policy=enforced)[0].items[-1] == ADD


def test_empty_answer_after_an_output_is_retried() -> None:
    """With ``fix_empty_final=on``, an empty answer to a tool output is retried once, with an additional line in the
    prompt and without tools.
    """
    call = {"id": "call_001", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_001", "content": "18"},
    ]
    policy = Policy(fix_empty_final="on")
    seen, script, _ = play("", "It is 18.", client="chat", policy=policy, messages=messages)
    assert seen.items == [["text", "It is 18."]]
    assert "CLIENT TOOL CATALOG" in str(script.asked[0])
    assert script.asked[1][:-1] == script.asked[0][:-1]
    _, _, asked = str(script.asked[1][-1]["content"]).partition(ANSWER_NOW)
    assert asked.endswith("You may call no tool in this answer: answer in words.")
    assert play("", "", client="chat", policy=policy, messages=messages)[0].items == []


def test_closing_the_answer_closes_the_round() -> None:
    """If the client's answer is closed early, the round at the backend is closed as well."""

    async def leave() -> Script:
        script = Script([GOOD], "chat")
        events = answer(job_of(script, "chat", True, RETRY, RoundLimits()))
        await anext(events)
        await events.aclose()
        return script

    assert asyncio.run(leave()).closed == 1


SAID = st.lists(
    st.sampled_from([GOOD, BAD, UNKNOWN, HALF, "text", "\n", " ", "<tool_call>", '{"name": "add"', "```json\n"]),
    max_size=4,
).map("".join)


@given(
    st.lists(st.one_of(SAID, SAID.map(lambda text: text + "|length"), st.none()), min_size=4, max_size=4),
    st.sampled_from(API_NAMES),
    st.sampled_from(API_NAMES),
    st.sampled_from([Policy(retry=3), Policy(retry=1, strict_policy="message")]),
    st.sampled_from(["auto", "required"]),
    st.integers(1, 9),
)
def test_streamed_and_non_streamed_answers_are_equal(
    texts: list[str | None], client: ApiName, backend: ApiName, policy: Policy, choice: str, size: int
) -> None:
    """For any sequence of rounds, an official client reads the same answer with and without streaming.

    When streaming, the client also checks that sequence numbers are complete, and that items and deltas arrive in
    order.
    """
    both = []
    for stream in (True, False):
        script = Script(texts, backend, size)
        status, chunks = asyncio.run(run(job_of(script, client, stream, policy, RoundLimits(), tool_choice=choice)))
        seen = read(client, stream, chunks, status)
        both.append((seen.items, seen.finish, seen.ids, seen.error) if not seen.error else seen.error)
    assert both[0] == both[1] or texts[0] is None
