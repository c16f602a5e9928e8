"""Tests for questions that ask about one of several tool outputs: their messages, and the answers that pass."""

from __future__ import annotations

import asyncio
import json

import pytest
from toolsim.eval.case import Verdict
from toolsim.eval.runtime.turn import Answer, Call, Request
from toolsim.eval.which_output import cases


def asked(case_id: str, answer: Answer) -> tuple[Request, Verdict]:
    """Play a case with a model that always answers with ``answer``. Return the request and the verdict."""
    requests: list[Request] = []

    async def send(request: Request) -> Answer:
        requests.append(request)
        return answer

    [case] = [case for case in cases() if case.id == case_id]
    verdict = asyncio.run(case.play(send))
    [request] = requests
    return request, verdict


def test_outputs_have_the_order_of_the_case() -> None:
    """Each tool output has the ID of its call. The outputs are in the order of the calls or shuffled, depending on the
    case. The question is about one of them.
    """
    for order, ids in (("in_order", ["call_001", "call_002"]), ("shuffled", ["call_002", "call_001"])):
        request, _ = asked(f"two_cities_{order}_oslo", Answer("4"))
        user, assistant, *outputs, question = request.messages
        assert user["content"] == "What is the weather in Rome and in Oslo?"
        cities = {call["id"]: json.loads(call["function"]["arguments"])["city"] for call in assistant["tool_calls"]}
        assert cities == {"call_001": "Rome", "call_002": "Oslo"}
        assert [output["tool_call_id"] for output in outputs] == ids
        celsius = {cities[output["tool_call_id"]]: json.loads(output["content"])["celsius"] for output in outputs}
        assert celsius == {"Rome": 21, "Oslo": 4}
        assert question["content"] == "How many degrees is it in Oslo? Answer with the number only."


def test_shuffled_order_defeats_matching_by_position() -> None:
    """A model that assigns outputs to calls by their position gives an incorrect answer in each shuffled case."""
    for case in cases():
        if "_shuffled_" in case.id:
            request, _ = asked(case.id, Answer(""))
            _, assistant, *outputs, _ = request.messages
            name = case.id.rpartition("_")[2]
            calls = [call["id"] for call in assistant["tool_calls"]]
            [mine] = [call["id"] for call in assistant["tool_calls"] if name in call["function"]["arguments"].lower()]
            assert outputs[calls.index(mine)]["tool_call_id"] != mine, case.id


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (Answer("4"), None),
        (Answer("It is 4 degrees in Oslo."), None),
        (Answer("4.0"), None),
        (Answer("21"), "wrong_value"),
        (Answer("4, and 21 in Rome"), "wrong_value"),
        (Answer(""), "wrong_value"),
        (Answer("4", (Call("call_003", "get_weather", "{}"),)), "needless_call"),
    ],
)
def test_only_the_correct_number_passes(answer: Answer, label: str | None) -> None:
    """The correct number passes in any sentence. An answer with another number or a call fails."""
    _, verdict = asked("two_cities_shuffled_oslo", answer)
    assert (verdict.ok, verdict.label) == (label is None, label)
