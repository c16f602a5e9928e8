"""Tests for combinations of options. Regardless of the number of rounds, the result is one consistent answer."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from support.emitted import BODIES, Emitted, Step, Thought
from support.rounds import play
from toolsim.core.policy import ApiName, Policy
from toolsim.rounds.round_planner import RoundLimits

ECHO = '<tool_call>{"name":"echo","arguments":{"x":1}}</tool_call>'
BARE = '{"name":"echo","arguments":{"x":3}}'
ADD = ECHO.replace("echo", "add").replace("x", "a")
CUT = '<tool_call>{"name":"add","arguments":{"a":1'
FIND = '<tool_call>{"name":"find_tools","arguments":{"names":["add"]}}</tool_call>'
WORDS = (
    ECHO,
    ECHO.replace("1", "2"),
    ADD,
    ADD.replace("1", '"one"'),
    ECHO.replace("echo", "other"),
    BARE,
    FIND,
    "Well. ",
)
ENDS = ("", "", "|length", f"{CUT}|length", f"{CUT}|stop")
EMITTED: tuple[Step, ...] = (
    *(
        Emitted("echo", '{"x":1}'),
        Emitted("echo", '{"x":2}', 2),
        Emitted("add", '{"a":1}'),
        Emitted("add", '{"a":"x"}'),
    ),
    *(Emitted("other", "{}", 1), Thought("hm"), "Well. ", ECHO),
)
BEHIND_OUTPUTS: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "echo", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "18"},
    ],
    "input": [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c", "name": "echo", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "18"},
    ],
}
POLICIES = st.builds(
    Policy,
    second_opinion=st.sampled_from(["on", "off"]),
    retry=st.integers(0, 2),
    unknown_tool=st.sampled_from(["text", "call", "retry"]),
    strict_policy=st.sampled_from(["error", "message"]),
    stop_after_tools=st.sampled_from(["auto", "on", "off"]),
    suppress_tail_after_tools=st.booleans(),
    stream_arguments=st.sampled_from(["buffered", "incremental"]),
    output_mode=st.sampled_from(["openai-json", "obsidian-xml"]),
    tool_block_max=st.integers(0, 2),
    tool_block_dedup=st.booleans(),
    untagged=st.sampled_from(["on", "off"]),
    mode=st.sampled_from(["inject", "native"]),
    catalog_budget=st.sampled_from([0, 10]),
    fix_empty_final=st.sampled_from(["off", "on", "with_tools"]),
    tool_use_mode=st.sampled_from(["", "relaxed"]),
)
TEXTS = st.builds(
    lambda words, end: "".join(words) + end, st.lists(st.sampled_from(WORDS), max_size=4), st.sampled_from(ENDS)
)
ANSWERS = (
    st.sampled_from(["yes", "no", "Perhaps."])
    | st.none()
    | TEXTS
    | st.lists(st.sampled_from(EMITTED), min_size=1, max_size=3)
)
API_NAMES: tuple[ApiName, ...] = ("chat", "responses")
# A policy that enables every kind of retry.
ALL = Policy(second_opinion="on", retry=1, strict_policy="message")


@given(
    st.lists(ANSWERS, min_size=8, max_size=8),
    POLICIES,
    st.sampled_from(API_NAMES),
    st.sampled_from(API_NAMES),
    st.sampled_from([{}, {}, {"parallel_tool_calls": False}, {"tool_choice": "required"}]),
    st.booleans(),
)
@example([ECHO + ADD.replace("1", '"one"'), "no", *[None] * 6], ALL, "chat", "chat", {}, False)
@example(
    [ADD + ADD.replace("add", "other"), *[None] * 7], Policy(), "chat", "chat", {"parallel_tool_calls": False}, False
)
@example(
    [f"{BARE}{CUT}|length", "So be it.", "", *[None] * 5],
    Policy(retry=2, stream_arguments="incremental"),
    "chat",
    "chat",
    {},
    False,
)
@example(
    [[Emitted("echo", '{"x":1}'), ECHO], *[None] * 7],
    Policy(tool_block_max=1, stream_arguments="incremental"),
    "chat",
    "chat",
    {},
    False,
)
@example(
    [[Emitted("echo", '{"x":1}'), ECHO.replace("1", "2"), "Well. "], *[None] * 7],
    Policy(tool_block_max=1, stream_arguments="incremental"),
    "responses",
    "chat",
    {},
    False,
)
def test_answers_are_consistent(
    answers: list[str | list[Step] | None],
    policy: Policy,
    client: ApiName,
    backend: ApiName,
    more: dict[str, Any],
    behind_outputs: bool,
) -> None:
    """The streamed and non-streamed answers are equal. Each of them is consistent with its report and its finish
    reason.
    """
    texts = [BODIES[backend](each, "tool_calls") if isinstance(each, list) else each for each in answers]
    if behind_outputs:
        key = "messages" if client == "chat" else "input"
        more = {**more, key: BEHIND_OUTPUTS[key]}
    both = []
    for stream in (False, True):
        seen, _, job = play(
            *texts, client=client, backend=backend, stream=stream, policy=policy, bounds=RoundLimits(rounds=4), **more
        )
        both.append((seen.items, seen.finish, seen.ids, seen.error))
        prefix = "call" if client == "chat" else "fc"
        assert seen.ids == [f"{prefix}_{number + 1:03d}" for number in range(len(seen.ids))]
        if seen.finish and seen.error is None:
            calls = [item[1] for item in seen.items if item[0] == "call"]
            assert job.report.calls == calls
            assert (job.report.finish == "tool_calls") == bool(calls) or job.report.finish == "length"
            assert client == "responses" or seen.finish == job.report.finish
    whole, streamed = both
    # If both answers fail, their content can differ, because part of the streamed answer has already been sent.
    assert whole == streamed or whole[-1] == streamed[-1] is not None
