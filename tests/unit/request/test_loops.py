"""Tests for the detection of loops over several turns: how repeated calls are counted, and the line that warns the
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from toolsim.core.conversation import Call, CallOutput, Item, Message, Text
from toolsim.core.policy import Policy
from toolsim.request.loops import LoopCounter, answer_about, lines_about, loop_at_end

POLICY = Policy()


def turns(*pairs: str) -> list[Item]:
    """Return a conversation. In ``pairs``, "a" is a call with the arguments "a" and the output "x", "a=y" is the same
    call with the output "y", and "!…" is a user message.
    """
    items: list[Item] = [Message("user", (Text("Go."),))]
    for number, pair in enumerate(pairs):
        if pair.startswith("!"):
            items.append(Message("user", (Text(pair[1:]),)))
            continue
        arguments, _, output = pair.partition("=")
        items.append(Call(f"c{number}", "read", arguments))
        items.append(CallOutput(f"c{number}", (Text(output or "x"),)))
    return items


def counts(*pairs: str) -> list[int]:
    return [repetition.count for repetition in LoopCounter().take(turns(*pairs))]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (["a"] * 4, [1, 2, 3, 4]),
        (["a", "b"] * 3, [1, 1, 1, 2, 2, 3]),
        (["a", "a", "a=y", "a", "a"], [1, 2, 1, 1, 2]),
        (["a=1", "a=2", "a=3"], [1, 1, 1]),
        (["a", "a", "b", "a"], [1, 2, 1, 1]),
        (["a", "a", "!And now?", "a"], [1, 2, 1]),
        (["a", "a", "!<system-reminder>x</system-reminder>", "a"], [1, 2, 3]),
    ],
)
def test_only_repetitions_without_progress_count(pairs: Sequence[str], expected: Sequence[int]) -> None:
    """A repeated call is counted only if there was no new call, output or user message since the previous one."""
    assert counts(*pairs) == expected


def test_parallel_calls_are_matched_by_id() -> None:
    """Outputs are matched to calls by ID, regardless of their order."""
    items: list[Item] = [Call("1", "f", "a"), Call("2", "f", "b"), CallOutput("2", (Text("y"),)), CallOutput("1", ())]
    assert [repetition.call.call_id for repetition in LoopCounter().take(items)] == ["2", "1"]
    assert list(LoopCounter().take([CallOutput("3", ())])) == []


def test_loop_is_mentioned_once() -> None:
    """The prompt mentions a loop only once, when the number of repetitions reaches half the limit, rounded up. With a
    limit of 2 or less, the prompt never mentions a loop.
    """
    for limit, at in ((6, 3), (5, 3), (4, 2), (2, None), (1, None), (0, None)):
        counter, said = LoopCounter(), []
        for number, start in enumerate(range(1, 21, 2), 1):
            lines = lines_about(counter.take(turns(*["a"] * 10)[start : start + 2]), replace(POLICY, loop_limit=limit))
            said += [number] if lines else []
        assert said == ([at] if at else [])


def test_loop_ends_the_turn_at_its_limit() -> None:
    """The turn ends if the number of repetitions has reached the limit and the model has not yet responded to the last
    output.
    """
    loop = loop_at_end(turns(*["a"] * 6), POLICY)
    assert loop is not None
    assert loop.count == 6
    assert "read 6 times with the same arguments (a)" in answer_about(loop)
    assert loop_at_end(turns(*["a"] * 5), POLICY) is None
    assert loop_at_end([*turns(*["a"] * 6), Call("x", "read", "b"), CallOutput("x", ())], POLICY) is None
    assert loop_at_end([*turns(*["a"] * 6), Message("assistant", (Text("Well."),))], POLICY) is None
    assert loop_at_end(turns(*["a"] * 6, "!Go on."), POLICY) is None
    assert loop_at_end(turns(*["a"] * 6, "!<hint>Be brief.</hint>"), POLICY) is not None
