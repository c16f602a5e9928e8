from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.each import each
from toolsim.core.policy import Policy
from toolsim.response.retry import CALL_FAULTS, EMPTY_ANSWER, SECOND_OPINION, Fault, Retry
from toolsim.response.verdict import ANSWER_MISMATCH
from toolsim.rounds.round_planner import ANSWER_NOW, Round, RoundLimits, RoundPlanner, may_be_hosted, may_take_rounds
from toolsim.wire.apis import CHAT, RESPONSES

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
OUTPUT: dict[str, Any] = {"role": "tool", "tool_call_id": "call_001", "content": "18"}

FAULTS = CALL_FAULTS | {ANSWER_MISMATCH}


def retry(reason: str = "UNKNOWN_TOOL", words: str = "w", partial_call: str = "") -> Retry:
    return Retry(Fault(reason, "x", partial_call=partial_call), words, ())


def run(course: RoundPlanner, *faults: Retry, seconds: float = 0, size: int = 0) -> list[Round | None]:
    """Return the first round and the round that follows each fault. A round is None if the limits do not allow it."""
    rounds: list[Round | None] = [course.first()]
    for fault in faults:
        before = rounds[-1]
        assert before is not None
        rounds.append(course.next(before, fault, called=False, seconds=seconds, size=size))
    return rounds


def test_number_of_retries_is_limited() -> None:
    """If all permitted retries have been used, another faulty call is not retried."""
    hosted = frozenset({"free__read"})
    rounds = run(
        RoundPlanner(CHAT, BODY, Policy(retry=2, second_opinion="off"), RoundLimits(), hosted), retry(), retry()
    )
    assert [each and (each.number, each.retries_allowed, each.hosted) for each in rounds] == [
        (1, FAULTS, hosted),
        (2, FAULTS, hosted),
        (3, {ANSWER_MISMATCH}, hosted),
    ]
    assert rounds[0] is not None
    assert rounds[0].body is BODY


def test_unknown_tool_is_retried_once() -> None:
    """With ``unknown_tool=retry``, there is one retry after a call to an unknown tool. There are no retries after other
    faults.
    """
    rounds = run(RoundPlanner(CHAT, BODY, Policy(unknown_tool="retry", second_opinion="off"), RoundLimits()), retry())
    assert [each and each.retries_allowed for each in rounds] == [{"UNKNOWN_TOOL"}, frozenset()]


def test_format_retries_are_counted_separately() -> None:
    """A retry that corrects the format of an answer does not count as a retry of a call. If the conversation ends with
    a tool output, the retry for the format has no tools.
    """
    answered, policy = {**BODY, "messages": [*BODY["messages"], OUTPUT]}, Policy(retry=1, second_opinion="off")
    for body, mode in ((BODY, ""), (answered, "withheld")):
        rounds = run(RoundPlanner(CHAT, body, policy, RoundLimits()), retry(), retry(ANSWER_MISMATCH))
        assert [each and each.policy.tool_use_mode for each in rounds] == ["", "", mode]
        assert [each and each.retries_allowed for each in rounds] == [FAULTS, {ANSWER_MISMATCH}, frozenset()]
        last = rounds[-1]
        assert last is not None
        assert last.body["messages"][-1]["content"].endswith("call a tool." if body is BODY else "to the schema.")


def test_text_is_requested_once_for_an_invented_call() -> None:
    """If ``second_opinion`` is "on" or "undeclared", a call to an undeclared tool causes one round without tools, which
    requests text. This applies only if another round is allowed.
    """
    for value in ("undeclared", "on"):
        first, second = run(
            RoundPlanner(CHAT, BODY, Policy(second_opinion=value), RoundLimits()), retry(SECOND_OPINION)
        )  # type: ignore[arg-type]
        assert first is not None
        assert second is not None
        assert (first.retries_allowed, second.retries_allowed) == ({SECOND_OPINION}, frozenset())
        assert (second.policy.tool_use_mode, second.body) == ("disabled", BODY)
    assert RoundPlanner(CHAT, BODY, Policy(), RoundLimits(rounds=1)).first().retries_allowed == frozenset()
    assert RoundPlanner(CHAT, BODY, Policy(second_opinion="off"), RoundLimits()).first().retries_allowed == frozenset()


@pytest.mark.parametrize(("api", "key"), [(CHAT, "messages"), (RESPONSES, "input")])
def test_further_round_continues_the_conversation(api: Any, key: str) -> None:
    """The request for a further round contains the client's messages. For each earlier round, the model's text and
    toolsim's reply follow.
    """
    body = BODY if key == "messages" else {"model": "m", "input": "hi"}
    _, second, third = run(
        RoundPlanner(api, body, Policy(retry=3), RoundLimits()), retry(words="one"), retry(words="", partial_call="b")
    )
    assert second is not None
    assert third is not None
    roles = [(each["role"], each["content"]) for each in third.body[key]]
    assert [role for role, _ in roles] == ["user", "assistant", "user", "assistant", "user"]
    assert [text for _, text in roles][:4] == ["hi", "one", second.body[key][-1]["content"], "(no answer)"]
    assert {name: value for name, value in third.body.items() if name != key} == {
        name: value for name, value in body.items() if name != key
    }
    assert (second.partial_call, third.partial_call) == ("", "b")


def test_empty_answer_is_retried_once_without_tools() -> None:
    """An empty answer is retried once, in addition to other retries. The retry has no tools unless ``fix_empty_final``
    is ``with_tools``.
    """
    policy = Policy(fix_empty_final="on", second_opinion="off")
    first, second = run(RoundPlanner(CHAT, BODY, policy, RoundLimits()), retry(EMPTY_ANSWER, ""))
    assert first is not None
    assert second is not None
    assert first.retries_allowed == {EMPTY_ANSWER}
    assert second.retries_allowed == frozenset()
    assert second.policy.tool_use_mode == "withheld"
    assert second.body["messages"][1:] == [{"role": "user", "content": ANSWER_NOW}]
    policy = replace(policy, retry=1, fix_empty_final="with_tools")
    _, second, third = run(RoundPlanner(CHAT, BODY, policy, RoundLimits()), retry(EMPTY_ANSWER, ""), retry())
    assert second is not None
    assert third is not None
    assert (second.policy.tool_use_mode, second.retries_allowed) == ("", FAULTS)
    assert third.retries_allowed == {ANSWER_MISMATCH}


@pytest.mark.parametrize(
    ("bounds", "used"),
    [
        (RoundLimits(rounds=1), {}),
        (RoundLimits(seconds=5), {"seconds": 5.0}),
        (RoundLimits(text_bytes=10), {"size": 11}),
    ],
)
def test_limits_prevent_a_further_round(bounds: RoundLimits, used: dict[str, Any]) -> None:
    """No further round is possible if the limit on rounds, time or text has been reached."""
    assert run(RoundPlanner(CHAT, BODY, Policy(retry=3), bounds), retry(), **used)[1] is None
    assert run(RoundPlanner(CHAT, BODY, Policy(retry=3), RoundLimits(seconds=0)), retry(), seconds=1e9)[1] is not None


def test_last_allowed_round_permits_no_retry() -> None:
    """If only one round is allowed, the answer in this round is final, and there is no retry."""
    assert run(RoundPlanner(CHAT, BODY, Policy(retry=3), RoundLimits(rounds=1)))[0] == Round(1, BODY, Policy(retry=3))


@each(
    ("policy", "change", "may"),
    [
        (Policy(retry=1), {}, True),
        (Policy(), {}, False),
        (Policy(unknown_tool="retry"), {}, True),
        (Policy(unknown_tool="call"), {}, False),
        (Policy(tool_use_mode="relaxed"), {}, True),
        (Policy(retry=1), {"tools": []}, False),
        (Policy(retry=1), {"n": 2}, False),
        (Policy(retry=1), {"background": True}, False),
        (Policy(fix_empty_final="on"), {}, False),
        (Policy(fix_empty_final="on"), {"messages": [*BODY["messages"], OUTPUT]}, True),
    ],
)
def test_requests_that_can_need_further_rounds(policy: Policy, change: dict[str, Any], may: bool) -> None:
    """The runner for several rounds is used only if a further round might be necessary. It is never used for requests
    with several choices.
    """
    assert may_take_rounds(CHAT.read(BODY | change), policy) is may


@pytest.mark.parametrize(
    ("policy", "change", "rounds", "may"),
    [
        (Policy(), {}, 2, True),
        (Policy(), {}, 1, False),
        (Policy(), {"n": 2}, 8, False),
        (Policy(), {"background": True}, 8, False),
        (Policy(), {"tool_choice": "none"}, 8, False),
        (Policy(), {"tools": None, "functions": [{"name": "f"}]}, 8, False),
        (Policy(tool_use_mode="disabled"), {}, 8, False),
    ],
)
def test_requests_that_can_have_mcp_tools(policy: Policy, change: dict[str, Any], rounds: int, may: bool) -> None:
    """MCP tools can be offered only if the request allows calls, has a single choice, and can have at least two
    rounds.
    """
    assert may_be_hosted(CHAT.read(BODY | change), policy, RoundLimits(rounds=rounds)) is may


@pytest.mark.parametrize("status", [401, 402, 403, 404, 408, 429])
def test_errors_unrelated_to_tools_are_not_retried(status: int) -> None:
    """An error about the API key, payment, the model or rate limits causes no retry without tools, because it is
    unrelated to tools.
    """
    course = RoundPlanner(CHAT, BODY, Policy(tool_use_mode="relaxed"), RoundLimits())
    assert course.without_tools(course.first(), status, seconds=0) is None
    following = course.without_tools(course.first(), 500, seconds=0)
    assert following is not None
    assert following.policy.tool_use_mode == "disabled"
    assert course.without_tools(following, 500, seconds=0) is None
    late = RoundPlanner(CHAT, BODY, Policy(tool_use_mode="relaxed"), RoundLimits(seconds=1))
    assert late.without_tools(late.first(), 500, seconds=1) is None


def test_second_opinion_counts_as_a_round() -> None:
    """A second opinion counts as a round, in which no retries are permitted. It is requested only if another round
    remains afterward.
    """
    course = RoundPlanner(CHAT, BODY, Policy(second_opinion="on"), RoundLimits(rounds=4))
    first = course.first()
    question = course.side_request("Be brief.", "Is it?", seconds=0)
    assert question is not None
    assert (question.number, question.retries_allowed) == (2, frozenset())
    assert [each["content"] for each in question.body["messages"]] == ["Be brief.", "Is it?"]
    assert course.side_request("Be brief.", "Is it?", seconds=600) is None
    words = course.next(first, retry("SECOND_OPINION"), called=False, seconds=0, size=0)
    assert words is not None
    assert (words.number, words.body, words.policy.tool_use_mode) == (3, BODY, "disabled")
    assert course.side_request("Be brief.", "Is it?", seconds=0) is None
    for api, key in ((CHAT, "messages"), (RESPONSES, "input")):
        asked = RoundPlanner(api, BODY, Policy(manifest_role="user"), RoundLimits()).side_request(
            "Be brief.", "Is it?", seconds=0
        )
        assert asked is not None
        assert "Be brief.\n\nIs it?" in (asked.body[key], asked.body[key][0]["content"] if api is CHAT else "")
        assert "instructions" not in asked.body


def test_calls_that_need_a_second_opinion() -> None:
    """A request can take several rounds for second opinions only if the model can choose whether to call a tool, and
    the last message is the user's.
    """
    policy = Policy(second_opinion="on")
    assert may_take_rounds(CHAT.read(BODY), policy)
    assert not may_take_rounds(CHAT.read(BODY | {"tools": []}), policy)
    assert not may_take_rounds(CHAT.read(BODY | {"tool_choice": "required"}), policy)
    assert not may_take_rounds(CHAT.read(BODY | {"n": 2}), policy)
    assert not may_take_rounds(CHAT.read(BODY | {"messages": [*BODY["messages"], OUTPUT]}), policy)
