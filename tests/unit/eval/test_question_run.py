"""Tests for sending the questions of an evaluation run and recording each as a step."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest
from toolsim.eval import question_run
from toolsim.eval.question_run import Asking, common_prefix
from toolsim.eval.runtime.turn import Answer, Message, ProviderError, Request, Tool

USER: Message = {"role": "user", "content": "Hello"}
TOOLS = (Tool("echo", "", {"type": "object"}),)


class Model:
    def __init__(self, *answers: Answer | ProviderError) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []

    async def __call__(self, request: Request) -> Answer:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, ProviderError):
            raise answer
        return answer


async def test_steps_record_only_new_messages() -> None:
    """A step contains the answer, the time, and only those messages that are not in the previous step. Token counts are
    added up.
    """
    ask = Asking(Model(Answer("a", (), "stop", 5, 1), Answer("b", (), "stop", 7, 2)), {"temperature": 0}, 5)
    await ask(Request((USER,), TOOLS))
    await ask(Request((USER, {"role": "assistant", "content": "a"}, USER), TOOLS))
    assert [(step["messages_before"], len(step["messages"])) for step in ask.steps] == [(0, 1), (1, 2)]
    first, second = (step["sizes"] for step in ask.steps)
    assert 0 < first["messages"] < second["messages"]
    assert [step["answer"]["text"] for step in ask.steps] == ["a", "b"]
    assert all(step["ms"] >= 0 for step in ask.steps)
    assert (ask.input_tokens, ask.output_tokens, ask.rewritten) == (12, 3, 2)


async def test_sampling_options_are_sent_with_each_question() -> None:
    """Each question is sent with the sampling options from the profile. Options in the case override them."""
    model = Model(Answer("a"))
    await Asking(model, {"temperature": 0, "top_p": 1}, 5)(Request((USER,), options={"top_p": 0.5}))
    assert model.requests[0].options == {"temperature": 0, "top_p": 0.5}


async def test_unanswered_question_fails_at_the_time_limit() -> None:
    """A question that is not answered within the time limit fails with a timeout, which is recorded in its step."""

    async def hang(request: Request) -> Answer:
        await asyncio.sleep(60)
        raise AssertionError

    ask = Asking(hang, {}, 0.05)
    with pytest.raises(ProviderError) as raised:
        await ask(Request((USER,)))
    assert raised.value.timed_out
    assert ask.steps[0]["error"]["message"]


@pytest.mark.slow
async def test_rate_limit_waits_for_retry_after() -> None:
    """After a 429, the question is sent again when the time in Retry-After has passed. This wait does not count as
    answer time.
    """
    limited = ProviderError("slow down", status=429, retry_after=0.2)
    model = Model(limited, limited, Answer("a"))
    ask = Asking(model, {}, 5)
    started = monotonic()
    await ask(Request((USER,)))
    assert monotonic() - started >= 0.4
    assert ask.waited >= 0.4
    assert ask.steps[0]["ms"] < 200
    assert len(ask.steps) == 1


async def test_waits_double_without_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Retry-After, each wait is twice as long as the previous one. After MAX_WAITS waits, the run fails."""
    monkeypatch.setattr(question_run, "FIRST_WAIT_SECONDS", 0.001)
    model = Model(*[ProviderError("slow down", status=429)] * (question_run.MAX_WAITS + 1))
    ask = Asking(model, {}, 5)
    with pytest.raises(ProviderError):
        await ask(Request((USER,)))
    assert len(model.requests) == question_run.MAX_WAITS + 1
    assert ask.waited >= 0.031


@pytest.mark.parametrize(
    "error",
    [
        ProviderError("tomorrow", status=429, retry_after=86_400),
        ProviderError("wrong key", status=401),
        ProviderError("gone", status=404),
        ProviderError("broken", status=503),
        ProviderError("down"),
    ],
)
async def test_other_errors_fail_immediately(error: ProviderError) -> None:
    """A run fails without a retry if the error is neither a 429 nor a 503 with Retry-After. The same applies to a 429
    with an unreasonably long Retry-After.
    """
    model = Model(error, Answer("never"))
    with pytest.raises(ProviderError):
        await Asking(model, {}, 5)(Request((USER,)))
    assert len(model.requests) == 1


async def test_loading_server_is_retried() -> None:
    """A 503 with Retry-After is retried like a 429. Servers send it while they load a model."""
    model = Model(ProviderError("loading", status=503, retry_after=0.01), Answer("a"))
    assert (await Asking(model, {}, 5)(Request((USER,)))).text == "a"


def test_common_prefix() -> None:
    """The common prefix of two lists ends at the first difference or at the end of the shorter list."""
    assert common_prefix([1, 2, 3], [1, 2, 4, 3]) == 2
    assert common_prefix([], [1]) == common_prefix([1], []) == 0


async def test_tool_choice_option_overrides_the_case() -> None:
    """The ``tool_choice`` option overrides the tool choice of a case, but only for questions with tools."""
    model = Model(Answer("a"), Answer("b"))
    ask = Asking(model, {"tool_choice": "echo", "seed": 1}, None)
    await ask(Request((USER,), TOOLS, "auto"))
    await ask(Request((USER,)))
    assert [(request.tool_choice, request.options) for request in model.requests] == [
        ("echo", {"seed": 1}),
        ("auto", {"seed": 1}),
    ]
