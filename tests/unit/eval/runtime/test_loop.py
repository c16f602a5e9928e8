"""Tests for the loop that runs a model's calls until the model answers without a call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from toolsim.eval.runtime.dispatcher import ToolDispatcher
from toolsim.eval.runtime.loop import FINAL_PROMPT, JsonLines, LoopSettings, Outcome, ToolLoopRunner
from toolsim.eval.runtime.prompt import PromptRunner
from toolsim.eval.runtime.registry import ToolRegistry, ToolResult
from toolsim.eval.runtime.turn import Answer, Call, ProviderError, Request, Tool

USER = {"role": "user", "content": "Go."}
REFUSED = ProviderError("no tools here", status=400)


class Model:
    """A model that returns the given answers in order. If an item is an exception, the exception is raised instead."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []

    async def __call__(self, request: Request) -> Answer:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def calls(*arguments: str, id: str = "call_1", name: str = "echo") -> Answer:
    return Answer("", tuple(Call(id, name, text) for text in arguments), "tool_calls")


async def run(model: Model, steps: list[dict[str, Any]] | None = None, **settings: Any) -> Outcome:
    registry = ToolRegistry()
    registry.add(Tool("echo", "", {"type": "object", "properties": {"n": {"type": "integer"}}}), dict)
    registry.add(Tool("fail", "", {"type": "object"}), lambda arguments: ToolResult.failed("BROKEN"))
    loop = ToolLoopRunner(
        PromptRunner(model),
        ToolDispatcher(registry),
        registry.offered(),
        LoopSettings(**settings),
        (lambda step: None) if steps is None else steps.append,
    )
    return await loop.run([USER])


def results(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {m["tool_call_id"]: json.loads(m["content"])["data"] for m in messages if m["role"] == "tool"}


async def test_loop_runs_until_an_answer_without_calls() -> None:
    """Calls run in order, and the model receives their results. When the model answers without a call, the text of that
    answer is the outcome.
    """
    model = Model(calls('{"n": 1}'), calls('{"n": 2}', id="call_2"), Answer("Done."))
    outcome = await run(model)
    assert (outcome.stop, outcome.text, len(outcome.answers)) == ("answer", "Done.", 3)
    assert results(model.requests[2].messages) == {"call_1": {"n": 1}, "call_2": {"n": 2}}
    assert [execution.turn for execution in outcome.executions] == [1, 2]
    assert outcome.messages[0] == USER


async def test_model_that_never_stops_is_stopped() -> None:
    """A model that never stops calling tools is stopped after ``max_turns`` requests."""
    model = Model(*[calls("{}", id=f"call_{number}") for number in range(9)])
    outcome = await run(model, max_turns=3)
    assert (outcome.stop, len(model.requests)) == ("max_turns", 3)


async def test_duplicate_call_ids_do_not_mix_results() -> None:
    """Each call is matched with its own result, even if the model omits or repeats call IDs."""
    model = Model(calls('{"n": 1}', '{"n": 2}'), calls('{"n": 3}'), calls('{"n": 4}', '{"n": 5}', id=""), Answer("."))
    outcome = await run(model)
    assert results(outcome.messages) == {
        "call_1": {"n": 1},
        "call_1_2": {"n": 2},
        "call_1_3": {"n": 3},
        "call": {"n": 4},
        "call_2": {"n": 5},
    }
    asked = [call["id"] for m in outcome.messages for call in m.get("tool_calls", ())]
    assert asked == list(results(outcome.messages))


FAILS, WORKS = calls("{}", name="fail"), calls("{}")


@pytest.mark.parametrize(
    ("answers", "fatal", "tolerated"),
    [
        ((WORKS,), "answer", "answer"),
        ((FAILS,), "tool_failed", "tool_failed"),
        ((WORKS, FAILS), "tool_failed", "answer"),
        ((FAILS, WORKS), "tool_failed", "answer"),
    ],
    ids=["one that works", "one that fails", "a later one fails", "another one works"],
)
async def test_failure_policy_of_enforced_mode(answers: tuple[Answer, ...], fatal: str, tolerated: str) -> None:
    """In enforced mode, the failure policy "fatal" requires that the last result of each tool is a success. With the
    policy "tolerated", a single success is enough.
    """
    for policy, stop in (("fatal", fatal), ("tolerated", tolerated)):
        outcome = await run(Model(*answers, Answer(".")), tool_use_mode="enforced", tool_failure_policy=policy)
        assert (outcome.stop, len(outcome.executions)) == (stop, len(answers))


async def test_recovered_tool_is_not_a_failure() -> None:
    """Only the last result of each tool counts, so a tool that first fails and then succeeds does not count as
    failed.
    """
    model = Model(calls('{"n": "x"}'), calls('{"n": 1}'), Answer("."))
    outcome = await run(model, tool_use_mode="enforced", tool_failure_policy="fatal")
    assert [execution.result.ok for execution in outcome.executions] == [False, True]
    assert outcome.stop == "answer"


@pytest.mark.parametrize("policy", ["fatal", "tolerated"])
async def test_failure_policy_of_other_modes(policy: str) -> None:
    """In relaxed and disabled modes, the failure policy has no effect. Relaxed mode still retries without tools."""
    relaxed = await run(Model(FAILS, Answer(".")), tool_use_mode="relaxed", tool_failure_policy=policy)
    assert (relaxed.stop, len(relaxed.executions)) == ("answer", 1)
    disabled = await run(Model(FAILS), tool_use_mode="disabled", tool_failure_policy=policy)
    assert (disabled.stop, disabled.executions) == ("answer", ())
    refusing = Model(REFUSED, Answer("In words."))
    assert (await run(refusing, tool_failure_policy=policy, fallback_retry_count=1)).text == "In words."
    assert [len(request.tools) > 0 for request in refusing.requests] == [True, False]


async def test_enforced_mode_requires_a_call_in_the_first_request() -> None:
    """Enforced mode requires a call only in the first request. If the model never makes a call, the outcome is a
    failure.
    """
    model = Model(calls("{}"), Answer("Done."))
    assert (await run(model, tool_use_mode="enforced")).stop == "answer"
    assert [request.tool_choice for request in model.requests] == ["required", "auto"]
    assert (await run(Model(Answer("No.")), tool_use_mode="enforced")).stop == "no_call"


async def test_disabled_mode_offers_no_tools_and_runs_no_calls() -> None:
    model = Model(calls("{}"))
    outcome = await run(model, tool_use_mode="disabled")
    assert model.requests[0].tools == ()
    assert (outcome.stop, outcome.executions) == ("answer", ())


async def test_relaxed_mode_retries_without_tools() -> None:
    """In relaxed mode, a refused request is retried without tools. After the allowed number of retries, the error is
    raised.
    """
    model = Model(REFUSED, Answer("In words."))
    assert (await run(model, fallback_retry_count=1)).text == "In words."
    assert [bool(request.tools) for request in model.requests] == [True, False]
    with pytest.raises(ProviderError):
        await run(Model(REFUSED, REFUSED), fallback_retry_count=1)
    with pytest.raises(ProviderError):
        await run(Model(REFUSED, Answer("Never asked.")))
    with pytest.raises(ProviderError):
        await run(Model(REFUSED, Answer("Never asked.")), fallback_retry_count=1, tool_use_mode="enforced")


async def test_timeout_is_not_retried_without_tools() -> None:
    """A request that timed out is not retried without tools, because a timeout is not related to tools."""
    with pytest.raises(ProviderError):
        await run(Model(ProviderError("late", timed_out=True), Answer("Never.")), fallback_retry_count=3)


async def test_empty_final_answer_is_retried() -> None:
    """If the final answer is empty, it is dropped, and the model is queried once more, without tools."""
    model = Model(calls("{}"), Answer(" "), Answer("Done."))
    outcome = await run(model)
    assert outcome.text == "Done."
    assert model.requests[2].messages[-1] == {"role": "user", "content": FINAL_PROMPT}
    assert model.requests[2].tools == ()
    assert all(message.get("content") != " " for message in outcome.messages)
    assert (await run(Model(calls("{}"), Answer(""), Answer("")), fix_empty_final=True)).text == ""


async def test_retry_of_an_empty_answer_can_keep_tools() -> None:
    """If the retry of an empty answer keeps the tools, the model can call them, and the loop continues."""
    model = Model(calls("{}"), Answer(""), calls("{}", id="call_9"), Answer("Done."))
    outcome = await run(model, fix_empty_final=True, fix_empty_final_disable_tools=False)
    assert (outcome.text, len(outcome.executions)) == ("Done.", 2)


async def test_empty_answer_is_not_retried_otherwise() -> None:
    """An empty answer is not retried if ``fix_empty_final`` is off or if no tool has run."""
    assert (await run(Model(calls("{}"), Answer("")), fix_empty_final=False)).text == ""
    assert (await run(Model(Answer("")))).text == ""


async def test_each_step_is_traced() -> None:
    """Requests, answers, results and errors are added to the trace in order. Different prompts have different
    fingerprints.
    """
    steps: list[dict[str, Any]] = []
    await run(Model(REFUSED, calls("{}"), Answer("Done.")), steps, fallback_retry_count=1)
    assert [step["step"] for step in steps] == [
        "request",
        "error",
        "request",
        "answer",
        "result",
        "request",
        "answer",
        "end",
    ]
    assert len({step["fingerprint"] for step in steps if step["step"] == "answer"}) == 2


def test_each_step_is_written_immediately(tmp_path: Path) -> None:
    """Each step of a trace is immediately written to the file as one line of JSON. A later trace is appended to the
    same file.
    """
    path = tmp_path / "trace.jsonl"
    trace = JsonLines(path)
    trace({"step": "answer", "text": "two\nlines, ünicode"})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": "answer", "text": "two\nlines, ünicode"}
    ]
    trace.close()
    again = JsonLines(path)
    again({"step": "end"})
    again.close()
    assert len(path.read_text().splitlines()) == 2
