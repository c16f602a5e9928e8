"""Tests that the model receives the stored content that a request refers to, with the real SDK, streamed or not."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from memory.conftest import connect
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says

TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]
DAMAGED = b"This is no database. " * 500
CALL = '<tool_call>{"name":"get_weather","arguments":{"city":"Bonn"}}</tool_call>'
pytestmark = pytest.mark.slow
both_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def ask(client: openai.OpenAI, stream: bool, **request: Any) -> Any:
    """Send one request; return the final response."""
    request = {"model": "m", **request}
    if not stream:
        return client.responses.create(**request)
    with client.responses.create(**request, stream=True) as events:
        last = list(events)[-1]
    assert last.type == "response.completed", last
    return last.response


def shown(backend: TextBackend) -> str:
    return "\n".join(f"{role}: {text}" for role, text in backend.exchanges[-1].transcript)


@both_modes
def test_conversation_by_previous_response_id(client: openai.OpenAI, backend: TextBackend, stream: bool) -> None:
    """If each turn refers to the previous turn, the model receives all turns, although the client sends only
    new items.
    """
    backend.play([says("I look.\n", CALL), says("18 degrees."), says("Rain.")])
    first = ask(client, stream, input="Weather in Bonn?", tools=TOOLS, instructions="Be brief.")
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert first.store is True
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "18"}
    second = ask(client, stream, input=[output], tools=TOOLS, previous_response_id=first.id)
    assert (second.output_text, second.previous_response_id) == ("18 degrees.", first.id)
    third = ask(client, stream, input="And tomorrow?", previous_response_id=second.id)
    assert third.output_text == "Rain."
    prompt = shown(backend)
    for words in "Weather in Bonn?", "I look.", "get_weather", "output=18]", "18 degrees.", "And tomorrow?":
        assert words in prompt, prompt
    assert "Be brief." not in prompt  # Instructions are not inherited.
    for exchange in backend.exchanges:
        assert not {"previous_response_id", "conversation"} & exchange.body.keys()
        assert exchange.body.get("store") in (False, None)
    ids = [item.id for response in (first, second, third) for item in response.output]
    assert len(set(ids)) == len(ids)


@both_modes
def test_items_by_reference(client: openai.OpenAI, backend: TextBackend, stream: bool) -> None:
    """A request can refer to any item of any answer by the item's ID, including calls. An item that is already part of
    the conversation is not repeated.
    """
    backend.play([says("Apples.", CALL), says("Pears."), says("Fine."), says("Once.")])
    first = ask(client, stream, input="Fruit?", tools=TOOLS)
    other = ask(client, stream, input="More fruit?")
    references = [{"type": "item_reference", "id": item.id} for item in (*first.output, *other.output)]
    call = first.output[-1]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "18"}
    third = ask(client, stream, input=[*references, output, {"role": "user", "content": "Good?"}], tools=TOOLS)
    prompt = shown(backend)
    assert prompt.index("Apples.") < prompt.index("Bonn") < prompt.index("Pears.") < prompt.index("Good?")
    again = [{"type": "item_reference", "id": third.output[0].id}, {"role": "user", "content": "Really?"}]
    ask(client, stream, input=again, previous_response_id=third.id)
    assert shown(backend).count("Fine.") == 1


@both_modes
@pytest.mark.parametrize(
    ("request_", "status", "code", "param", "words"),
    [
        (
            {"previous_response_id": "resp_x"},
            400,
            "previous_response_not_found",
            "previous_response_id",
            "Previous response with id 'resp_x' not found.",
        ),
        ({"conversation": "conv_x"}, 404, None, "conversation", "Conversation with id 'conv_x' not found."),
        ({"conversation": {"id": "conv_x"}}, 404, None, "conversation", "Conversation with id 'conv_x' not found."),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, 404, None, "input", "Item with id 'msg_x' not found."),
        ({"previous_response_id": 5}, 400, "invalid_type", "previous_response_id", "expected a string"),
        ({"conversation": 5}, 400, "invalid_type", "conversation", "expected a string or an object"),
        (
            {"previous_response_id": "a", "conversation": "b"},
            400,
            "mutually_exclusive_parameters",
            "previous_response_id",
            "Mutually exclusive",
        ),
    ],
)
def test_unknown_id_is_an_api_error(
    client: openai.OpenAI,
    backend: TextBackend,
    stream: bool,
    request_: dict[str, Any],
    status: int,
    code: str | None,
    param: str,
    words: str,
) -> None:
    """An unknown or invalid ID causes an error in the API's format, before any request to the model."""
    backend.play([])
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, stream, **{"input": "Hello", **request_})
    error: Any = caught.value
    assert (error.status_code, error.code, error.param) == (status, code, param)
    assert words in str(error)
    assert backend.exchanges == []


@both_modes
def test_store_false_is_respected(client: openai.OpenAI, backend: TextBackend, stream: bool) -> None:
    """A later request cannot refer to an answer with store: false, but a request with store: false can refer to stored
    answers.
    """
    backend.play([says("One."), says("Two."), says("Three.")])
    first = ask(client, stream, input="Hello")
    second = ask(client, stream, input="Again", previous_response_id=first.id, store=False)
    assert (second.output_text, second.store) == ("Two.", False)
    assert "One." in shown(backend)
    with pytest.raises(openai.BadRequestError, match="not found"):
        ask(client, stream, input="Once more", previous_response_id=second.id)


def test_items_are_not_found_with_another_key(proxy: Mitmdump, backend: TextBackend) -> None:
    """Responses and items that belong to one key are not found with another key."""
    backend.play([says("Secret.")])
    with connect(proxy, "sk-one") as one, connect(proxy, "sk-two") as two:
        mine = ask(one, False, input="Hello")
        with pytest.raises(openai.BadRequestError, match="Previous response with id"):
            ask(two, False, input="Hello", previous_response_id=mine.id)
        with pytest.raises(openai.NotFoundError, match="Item with id"):
            ask(two, False, input=[{"type": "item_reference", "id": mine.output[0].id}])


@both_modes
def test_failed_answer_is_not_stored(client: openai.OpenAI, backend: TextBackend, stream: bool) -> None:
    """A failed answer is not stored, and its turn can be repeated from the same previous answer."""
    backend.play([says("One."), says("Tw", ending="eof"), says("Two.")])
    first = ask(client, stream, input="Hello")
    with pytest.raises((openai.APIError, AssertionError)):
        ask(client, stream, input="Again", previous_response_id=first.id)
    assert ask(client, stream, input="Again", previous_response_id=first.id).output_text == "Two."


@both_modes
def test_large_histories(client: openai.OpenAI, backend: TextBackend, stream: bool) -> None:
    """Requests and answers are stored even if they are so large that a worker process parses them."""
    backend.play([says("a long story " * 20_000), says("Fine."), says("End.")])
    first = ask(client, stream, input="word " * 20_000)
    second = ask(client, stream, input="And?", previous_response_id=first.id, tools=TOOLS)
    ask(client, stream, input="Well?", previous_response_id=second.id)
    prompt = shown(backend)
    assert prompt.count("a long story ") == 20_000
    assert prompt.count("word ") == 20_000


def test_escaped_field_name_is_recognized(client: openai.OpenAI, backend: TextBackend) -> None:
    """A reference is recognized even if its field name contains JSON escapes."""
    backend.play([])
    body = json.dumps({"model": "m", "input": "x", "previous_response_id": "resp_x"}).replace(
        "previous", "pr\\u0065vious"
    )
    answer = client._client.post("responses", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert backend.exchanges == []
