"""Tests for token counts and compaction with the real SDK. Both use the prompt that the model would receive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from memory.conftest import connect
from memory.test_references import CALL, TOOLS, ask, shown
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def counting() -> Iterator[tuple[TextBackend, openai.OpenAI]]:
    """A backend that can count tokens, behind a proxy without a store."""
    with (
        TextBackend() as backend,
        Mitmdump(backend.url, toolsim_backend="responses") as proxy,
        connect(proxy) as client,
    ):
        backend.count = 77
        yield backend, client


def test_backend_counts_the_rewritten_prompt(counting: tuple[TextBackend, openai.OpenAI]) -> None:
    """The backend counts the rewritten prompt, in which the catalog and the calls are text, and receives only fields
    that it accepts.
    """
    backend, client = counting
    call = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "18"}
    items: Any = [{"role": "user", "content": "Weather?"}, call, output]
    count = client.responses.input_tokens.count(model="m", input=items, tools=TOOLS)
    assert (count.input_tokens, count.model_extra) == (77, {})
    asked = backend.counted[-1]
    assert asked.keys() == {"model", "input"}
    assert {item["type"] for item in asked["input"]} == {"message"}
    assert "CLIENT TOOL CATALOG" in str(asked)


def test_backend_that_cannot_count_is_asked_once(counting: tuple[TextBackend, openai.OpenAI]) -> None:
    """A backend that cannot count is asked for a count only once. All counts are then estimates, and are marked as
    estimates.
    """
    backend, client = counting
    backend.count, before = None, len(backend.counted)
    for _ in range(2):
        estimate = client.responses.input_tokens.count(model="m", input="Hello there, how are you?")
        assert estimate.model_extra == {"estimated": True}
        assert 7 <= estimate.input_tokens <= 20
    assert len(backend.counted) == before + 1
    with pytest.raises(openai.BadRequestError, match="Invalid type for 'input'"):
        client.responses.input_tokens.count(model="m", input=5)  # type: ignore[arg-type]


def test_estimate_includes_tools_and_stored_answer(client: openai.OpenAI, backend: TextBackend) -> None:
    """A token estimate includes the tools, and the stored answer that the request refers to."""
    backend.play([says("word " * 200)])
    first = ask(client, False, input="Hello")
    count = client.responses.input_tokens.count
    plain, with_tools = count(model="m", input="And?"), count(model="m", input="And?", tools=TOOLS)
    after = count(model="m", input="And?", previous_response_id=first.id)
    assert with_tools.input_tokens > plain.input_tokens + 50
    assert after.input_tokens > plain.input_tokens + 150
    with pytest.raises(openai.BadRequestError, match="Previous response with id"):
        count(model="m", input="And?", previous_response_id="resp_x")


def test_conversation_continues_from_its_summary(client: openai.OpenAI, backend: TextBackend) -> None:
    """A compacted conversation continues with the user's messages and the model's summary."""
    backend.play([says("I look.", CALL), says("It was 18 degrees in Bonn."), says("Rain.", CALL), says("Bye.")])
    first = ask(client, False, input="Weather in Bonn?", tools=TOOLS)
    output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "18"}
    made = client.responses.compact(model="m", input=[output], previous_response_id=first.id)  # type: ignore[list-item]
    prompt = shown(backend)
    places = [prompt.index(words) for words in ("Weather in Bonn?", "I look.", "output=18]", "Summarise")]
    assert places == sorted(places)
    assert "CLIENT TOOL CATALOG" not in prompt
    assert (made.object, [item.type for item in made.output]) == ("response.compaction", ["message", "compaction"])
    assert made.usage.output_tokens == 6
    left = [item.to_dict(warnings=False) for item in made.output]
    items: list[Any] = [*left, {"role": "user", "content": "And tomorrow?"}]
    again = ask(client, True, input=items, tools=TOOLS)
    assert [item.type for item in again.output] == ["message", "function_call"]
    ask(client, False, input=items)
    for exchange in backend.exchanges[-2:]:
        words = "\n".join(text for _, text in exchange.transcript)
        places = [words.index(text) for text in ("Weather in Bonn?", "It was 18 degrees in Bonn.", "And tomorrow?")]
        assert places == sorted(places)
        assert "I look." not in words


def test_failed_compactions_are_api_errors(client: openai.OpenAI, backend: TextBackend) -> None:
    """A missing model, a truncated summary, and a backend error each cause an error in the API's format."""
    backend.play([says("Half of", ending="length"), says("x", ending="error")])
    assert client._client.post("responses/compact", json={"input": "x"}).status_code == 400
    assert client._client.post("responses/compact", content=b"[]").status_code == 400
    for words in "a complete summary", "The model is out":
        with pytest.raises(openai.InternalServerError, match=words):
            client.responses.compact(model="m", input="Hello")
