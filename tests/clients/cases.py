"""The cases that every real client must pass, in one table for all clients, APIs and backends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel
from support.text_backend import Exchange, TextBackend, Turn, refuses, says

MODEL = "gpt-text"
TOOLS: list[dict[str, Any]] = [
    {
        "name": "get_weather",
        "description": "Tell the sky over a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city's name."}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    {
        "name": "list_cities",
        "description": "Tell which cities have a weather station.",
        "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    },
]


def run_tool(name: str, arguments: dict[str, Any]) -> str:
    """Return the result of one of the client's two tools. node/loop.mjs defines the same tools."""
    if name == "get_weather":
        return f"The sky over {arguments['city']} is clear."
    assert name == "list_cities"
    return "Paris, Rome"


def call(name: str, arguments: dict[str, Any] | None = None) -> str:
    """Return a call as the model writes it."""
    body = {"name": name} if arguments is None else {"name": name, "arguments": json.dumps(arguments)}
    return f"<tool_call>{json.dumps(body)}</tool_call>"


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario: the model's text for each turn, and the required reaction of the client.

    If ``error`` is set, the client's first prompt must fail with an error of the client library that contains this
    text. The same client then runs the turns with its second prompt.
    """

    name: str
    turns: tuple[Turn, ...]
    calls: tuple[tuple[str, dict[str, Any]], ...]
    words: str
    strict: bool = False
    error: str | None = None
    chunk_size: int | None = 3
    split: int | None = None

    @property
    def prompts(self) -> list[str]:
        return ["What is the weather?"] * (1 if self.error is None else 2)


PARIS, ROME = {"city": "Paris"}, {"city": 'Rome, "Città" {1} 🌞'}
UNKNOWN = call("get_tide", PARIS)
ONE_CALL = Case(
    "one call",
    (says("Let me look.\n", call("get_weather", PARIS)), says("It is clear in Paris.")),
    calls=(("get_weather", PARIS),),
    words="It is clear in Paris.",
)
CASES = (
    ONE_CALL,
    Case(
        "two calls in one answer",
        (
            says(call("get_weather", PARIS), "\n", call("get_weather", ROME)),
            says("Both are clear."),
        ),
        calls=(("get_weather", PARIS), ("get_weather", ROME)),
        words="Both are clear.",
        chunk_size=1,
    ),
    Case(
        "two tool turns",
        (says(call("get_weather", PARIS)), says(call("get_weather", PARIS)), says("Still clear.")),
        calls=(("get_weather", PARIS), ("get_weather", PARIS)),
        words="Still clear.",
    ),
    Case(
        "no arguments",
        (says(call("list_cities")), says("Paris and Rome – è tutto.")),
        calls=(("list_cities", {}),),
        words="Paris and Rome – è tutto.",
        chunk_size=5,
        split=17,  # This size splits frames, lines and multibyte characters.
    ),
    Case(
        "words after the call",  # A Responses answer can contain text after a call; a chat message cannot.
        (says("I look. ", call("get_weather", PARIS), " While it runs: ", *["a rhyme, "] * 40), says("Clear.")),
        calls=(("get_weather", PARIS),),
        words="Clear.",
    ),
    Case(
        # About half of the clients would ignore a call in an answer that is marked as incomplete.
        "token limit after the call",
        (says(call("get_weather", PARIS), ending="length"), says("Clear.")),
        calls=(("get_weather", PARIS),),
        words="Clear.",
    ),
    Case(
        "unknown tool",
        (says("Hm. ", UNKNOWN),),
        calls=(),
        words="Hm. " + UNKNOWN,
    ),
    Case(
        "backend error",
        (refuses(500, "The model is out."), *ONE_CALL.turns),
        calls=ONE_CALL.calls,
        words=ONE_CALL.words,
        error="The model is out.",
    ),
    Case(
        "backend ends early",
        (says("Let me ", "look.", ending="eof"), *ONE_CALL.turns),
        calls=ONE_CALL.calls,
        words=ONE_CALL.words,
        error="",
    ),
    Case(
        "strict violation",
        (says(call("get_weather", {"town": 5})), *ONE_CALL.turns),
        calls=ONE_CALL.calls,
        words=ONE_CALL.words,
        strict=True,
        error="get_weather",
    ),
)


class Sky(BaseModel):
    """A schema for the final text answer of a client that also has tools."""

    city: str
    sky: str


TYPED = Case(
    "typed answer",  # The call has no tag, so only the schema distinguishes it from the answer.
    (says(json.dumps({"name": "get_weather", "arguments": PARIS})), says('{"city":"Paris","sky":"clear"}')),
    calls=(("get_weather", PARIS),),
    words='{"city":"Paris","sky":"clear"}',
)
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
both_apis = pytest.mark.parametrize("api", ["responses", "chat"])


def _pairs(*pairs: tuple[str, str]) -> pytest.MarkDecorator:
    named = [pytest.param(api, api_name, id=f"{api}-over_{api_name}") for api, api_name in pairs]
    # Without an explicit scope, the stage would restart for each test, because the API parameter is not a fixture.
    return pytest.mark.parametrize(("api", "stage"), named, indirect=["stage"], scope="session")


# A client cannot tell which API its backend has. So each client is tested with a backend that has the same API as the
# client, and only one client is also tested with a backend that has the other API.
over_its_own_api = _pairs(("responses", "responses"), ("chat", "chat"))
over_the_other_api = _pairs(("responses", "chat"), ("chat", "responses"))
# Mostly for clients of the Messages API, which the test backend does not support. Anthropic's SDK for Python is also
# tested with a Responses backend.
over_chat = pytest.mark.parametrize("stage", ["chat"], ids=["over_chat"], indirect=True)
# For programs that support only the Responses API, such as Codex.
over_responses = pytest.mark.parametrize("stage", ["responses"], ids=["over_responses"], indirect=True)


@dataclass(slots=True)
class Outcome:
    """The result of one prompt for the client: the calls that it ran, their IDs, and the final text or an error."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    text: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A backend as a client sees it: ``base_url`` is the proxy's URL, and ``api_name`` is the API of ``backend``."""

    backend: TextBackend
    base_url: str
    api_name: str

    def run_case(self, case: Case, run: Callable[[str], Outcome]) -> None:
        """Play the case for a client that runs each prompt with ``run``, and check the outcomes."""
        self.prepare(case)
        self.compare(case, [run(prompt) for prompt in case.prompts])

    def prepare(self, case: Case) -> None:
        self.backend.play(case.turns, chunk_size=case.chunk_size, split=case.split)

    def compare(self, case: Case, outcomes: list[Outcome]) -> None:
        if case.error is not None:
            failed = outcomes[0]
            assert failed.error is not None, f"the first prompt should have failed, it came to {failed}"
            assert case.error in failed.error
            assert failed.calls == []
        done = outcomes[-1]
        assert done.error is None
        assert [(name, arguments) for name, arguments in done.calls] == list(case.calls)
        assert done.text == case.words
        assert len(set(done.ids)) == len(case.calls), f"ids repeat in the conversation: {done.ids}"
        self.compare_backend(case)

    def compare_control(self, outcome: Outcome) -> None:
        """Check that, without the addon, the model's answer in ``ONE_CALL`` arrives as text, including the markup."""
        assert outcome == Outcome(text=ONE_CALL.turns[0].text)
        assert len(self.backend.exchanges) == 1

    def compare_backend(self, case: Case) -> None:
        """Check that the backend received one text-only request per turn, and that the last request contains the
        outputs.
        """
        assert len(self.backend.exchanges) == len(case.turns)
        ending = "/v1/responses" if self.api_name == "responses" else "/v1/chat/completions"
        for exchange in self.backend.exchanges:
            assert exchange.path == ending
            assert not exchange.body.get("tools")
            assert exchange.transcript, f"the text model could not read {exchange.body}"
        history = transcript(self.backend.exchanges[-1])
        for name, arguments in case.calls:
            assert json.dumps(run_tool(name, arguments), ensure_ascii=False)[1:-1] in history


def transcript(exchange: Exchange) -> str:
    """Return the prompt that the backend received, as one string."""
    return "\n".join(f"{role}: {text}" for role, text in exchange.transcript)
