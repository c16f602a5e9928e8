"""Required calls from a real llama.cpp server, whose model is too small to follow instructions without enforcement.

The test needs a server in ``TOOLSIM_LLAMA_SERVER`` (``http://127.0.0.1:8080``, with any model), so CI does not run it.
With SmolLM2-135M, each form takes about ten minutes on an idle core.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jsonschema
import openai
import pytest
from support.mitmdump import Mitmdump

SERVER = os.environ.get("TOOLSIM_LLAMA_SERVER", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SERVER, reason="TOOLSIM_LLAMA_SERVER names no real llama.cpp server"),
]
TOKENS = 600


@dataclass(frozen=True)
class Case:
    question: str
    tools: tuple[dict[str, Any], ...]
    named: bool
    api: str
    stream: bool


@dataclass(frozen=True)
class Outcome:
    """The result for the client: its calls (name, arguments), and whether the answer was marked as truncated."""

    calls: list[tuple[str, str]]
    cut: bool


def cases() -> Iterator[Case]:
    """Yield three cases per question: a call to any tool is required over each API, and a call to a specific tool over
    one of them.
    """
    data = json.loads(files("toolsim.eval").joinpath("questions.json").read_text())
    declared = {tool["name"]: tool for tool in data["tools"]}
    for index, asked in enumerate(data["questions"]):
        tools = tuple(declared[name] for name in asked["tools"])
        for named, api in ((False, "chat"), (False, "responses"), (True, ("chat", "responses")[index // 2 % 2])):
            yield Case(asked["question"], tools, named, api, bool((index + named) % 2))


def ask(client: openai.OpenAI, case: Case) -> Outcome:
    flat = [{"type": "function", **{key: tool[key] for key in ("name", "parameters")}} for tool in case.tools]
    nested = [
        {"type": "function", "function": {key: tool[key] for key in ("name", "parameters")}} for tool in case.tools
    ]
    name = case.tools[-1]["name"]
    if case.api == "chat":
        choice: Any = {"type": "function", "function": {"name": name}} if case.named else "required"
        given: dict[str, Any] = {"tools": nested, "tool_choice": choice, "temperature": 0.7, "max_tokens": TOKENS}
        messages: Any = [{"role": "user", "content": case.question}]
        if case.stream:
            try:
                with client.chat.completions.stream(model="m", messages=messages, **given) as stream:
                    for _ in stream:
                        pass
                    answer = stream.get_final_completion().choices[0]
            except openai.LengthFinishReasonError:
                return Outcome([], True)
        else:
            answer = client.chat.completions.create(model="m", messages=messages, **given).choices[0]
        calls = [(call.function.name, call.function.arguments) for call in answer.message.tool_calls or ()]
        return Outcome(calls, answer.finish_reason == "length")
    choice = {"type": "function", "name": name} if case.named else "required"
    given = {"tools": flat, "tool_choice": choice, "temperature": 0.7, "max_output_tokens": TOKENS}
    if case.stream:
        response: Any = None
        with client.responses.stream(model="m", input=case.question, **given) as events:
            # get_final_response() would not accept a truncated answer.
            for event in events:
                response = getattr(event, "response", response)
    else:
        response = client.responses.create(model="m", input=case.question, **given)
    calls = [(item.name, item.arguments) for item in response.output if item.type == "function_call"]
    return Outcome(calls, response.status == "incomplete")


def is_sound(case: Case, outcome: Outcome) -> bool:
    """Return whether there is a call, and each call names an offered tool and conforms to the tool's schema."""
    offered = {tool["name"]: tool["parameters"] for tool in case.tools[-1 if case.named else 0 :]}
    return bool(outcome.calls) and all(
        name in offered and jsonschema.Draft202012Validator(offered[name]).is_valid(json.loads(arguments))
        for name, arguments in outcome.calls
    )


@pytest.mark.parametrize("form", ["auto", "gbnf"])
def test_required_calls_fit_their_schema(form: str) -> None:
    """Each complete answer is a call that conforms to its tool's schema. All other answers are marked as truncated."""
    asked = list(cases())
    with (
        Mitmdump(SERVER, toolsim_backend="chat", toolsim_constrain=form, toolsim_idle_timeout=1800) as proxy,
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none", timeout=1800, max_retries=0) as client,
    ):
        outcomes = [ask(client, case) for case in asked]
    cut = sum(outcome.cut for outcome in outcomes)
    sound = sum(is_sound(case, outcome) for case, outcome in zip(asked, outcomes, strict=True))
    print(f"{form}: {sound} of {len(asked)} calls sound, {cut} cut off at {TOKENS} tokens")
    wrong = [
        (case, outcome)
        for case, outcome in zip(asked, outcomes, strict=True)
        if not outcome.cut and not is_sound(case, outcome)
    ]
    assert wrong == []
    assert sound >= 50
