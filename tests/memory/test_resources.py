"""Tests for retrieving, listing, changing and deleting answers and conversations with the real SDK."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from memory.conftest import connect
from memory.test_references import CALL, TOOLS, ask, both_modes, shown
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says

pytestmark = pytest.mark.slow


@both_modes
def test_answer_is_retrieved_as_sent(client: openai.OpenAI, backend: TextBackend, stream: bool) -> None:
    """A retrieved answer equals the answer that was sent, streamed or not. Once it is deleted, it is not found."""
    backend.play([says("I look.", CALL)])
    given = ask(client, stream, input="Weather?", tools=TOOLS, metadata={"a": "b"}, temperature=0.5)
    assert client.responses.retrieve(given.id).to_dict() == given.to_dict()
    deleted: Any = client.delete(f"/responses/{given.id}", cast_to=dict[str, Any])
    assert deleted == {"id": given.id, "object": "response", "deleted": True}
    for _ in "12":
        with pytest.raises(openai.NotFoundError, match=f"Response with id '{given.id}' not found."):
            client.responses.delete(given.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(given.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        ask(client, stream, input="More", previous_response_id=given.id)


def test_input_items_are_paged(client: openai.OpenAI, backend: TextBackend) -> None:
    """A request's input items are listed page by page, in either order, and each item has an ID."""
    backend.play([says("One."), says("Two.")])
    first = ask(client, False, input="Hello")
    items: list[Any] = [{"role": "user", "content": f"word {number}"} for number in range(45)]
    second = ask(client, False, input=items, previous_response_id=first.id)
    for order, expected in ("asc", list(range(45))), ("desc", list(range(44, -1, -1))):
        listed: list[Any] = list(client.responses.input_items.list(second.id, order=order, limit=7))  # type: ignore[arg-type]
        assert [item.content[0].text for item in listed] == [f"word {number}" for number in expected]
        assert len({item.id for item in listed}) == 45
    page: Any = client.responses.input_items.list(second.id)
    assert (len(page.data), page.has_more, page.first_id) == (20, True, page.data[0].id)
    (only,) = client.responses.input_items.list(first.id).data
    assert (only.type, only.role, only.status) == ("message", "user", "completed")  # type: ignore[union-attr]
    for wrong in {"limit": 101}, {"limit": 0}, {"order": "up"}, {"after": "msg_x"}:
        with pytest.raises(openai.BadRequestError, match=f"Invalid '{next(iter(wrong))}'"):
            client.responses.input_items.list(second.id, **wrong)  # type: ignore[arg-type]


def test_unsupported_actions_are_api_errors(client: openai.OpenAI, backend: TextBackend, proxy: Mitmdump) -> None:
    """The API's own error is returned for an unknown ID, for a wrong method, and for canceling or streaming a
    foreground answer.
    """
    backend.play([says("One.")])
    given = ask(client, False, input="Hello")
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(given.id)
    with pytest.raises(openai.BadRequestError, match="cannot be streamed again"):
        list(client.responses.retrieve(given.id, stream=True))
    for call in client.responses.retrieve, client.responses.cancel, client.responses.input_items.list:
        with pytest.raises(openai.NotFoundError, match="Response with id 'resp_x' not found"):
            call("resp_x")
    assert client._client.put(f"responses/{given.id}").status_code == 405
    with connect(proxy, "another") as other, pytest.raises(openai.NotFoundError):
        other.responses.retrieve(given.id)


def test_conversations_are_stored(client: openai.OpenAI, proxy: Mitmdump) -> None:
    """Conversations and their items can be created, read, changed and deleted. With another key, they are not found."""
    made = client.conversations.create(
        metadata={"a": "b"}, items=[{"type": "message", "role": "user", "content": "one"}]
    )
    assert (made.object, made.metadata) == ("conversation", {"a": "b"})
    assert client.conversations.retrieve(made.id) == made
    assert client.conversations.update(made.id, metadata={"c": "d"}).metadata == {"c": "d"}
    words = [f"word {number}" for number in range(20)]
    added: Any = client.conversations.items.create(made.id, items=[{"role": "user", "content": word} for word in words])
    assert [item.content[0].text for item in added.data] == words
    listed: list[Any] = list(client.conversations.items.list(made.id, order="asc", limit=6))
    assert [item.content[0].text for item in listed] == ["one", *words]
    assert client.conversations.items.retrieve(listed[3].id, conversation_id=made.id) == listed[3]
    assert client.conversations.items.delete(listed[3].id, conversation_id=made.id).metadata == {"c": "d"}
    assert len(list(client.conversations.items.list(made.id))) == 20
    with pytest.raises(openai.NotFoundError, match="Item with id"):
        client.conversations.items.retrieve(listed[3].id, conversation_id=made.id)
    with connect(proxy, "another") as other, pytest.raises(openai.NotFoundError):
        other.conversations.retrieve(made.id)
    deleted = client.conversations.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError, match=f"Conversation with id '{made.id}' not found."):
        client.conversations.retrieve(made.id)
    with pytest.raises(openai.BadRequestError, match="at most 20"):
        client.conversations.create(items=[{"role": "user", "content": "x"}] * 21)


@both_modes
def test_turns_are_added_to_their_conversation(client: openai.OpenAI, backend: TextBackend, stream: bool) -> None:
    """The input and output of each turn in a conversation, including calls, are part of the next prompt."""
    backend.play([says("I look.", CALL), says("18 degrees."), says("Rain.")])
    conversation = client.conversations.create(items=[{"role": "user", "content": "I am in Bonn."}])
    first = ask(client, stream, input="Weather?", tools=TOOLS, conversation=conversation.id)
    assert first.conversation.id == conversation.id
    output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "18"}
    ask(client, stream, input=[output], tools=TOOLS, conversation={"id": conversation.id})
    third = ask(client, stream, input="Tomorrow?", conversation=conversation.id)
    prompt = shown(backend)
    places = [prompt.index(words) for words in ("I am in", "Weather?", "I look.", "=18]", "18 degrees.", "Tomorrow?")]
    assert places == sorted(places)
    listed: list[Any] = list(client.conversations.items.list(conversation.id, order="asc"))
    kinds = ["message"] * 3 + ["function_call", "function_call_output"] + ["message"] * 3
    assert [item.type for item in listed] == kinds
    assert listed[-1].id == third.output[0].id
    assert len({item.id for item in listed}) == len(listed)
    client.conversations.delete(conversation.id)
    with pytest.raises(openai.NotFoundError, match="Conversation with id"):
        ask(client, stream, input="More", conversation=conversation.id)


def test_concurrent_additions_are_all_stored(client: openai.OpenAI, backend: TextBackend, proxy: Mitmdump) -> None:
    """If turns and items are added to a conversation concurrently, all of them are stored."""
    backend.play(lambda exchange: says("Fine."))
    conversation = client.conversations.create()

    def add(number: int) -> None:
        with connect(proxy) as own:
            if number % 2:
                ask(own, number % 4 == 1, input=f"word {number}", conversation=conversation.id)
            else:
                own.conversations.items.create(conversation.id, items=[{"role": "user", "content": f"word {number}"}])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(16)))
    listed: list[Any] = list(client.conversations.items.list(conversation.id, limit=100))
    texts = [item.content[0].text for item in listed]
    assert sorted(texts) == sorted(["Fine."] * 8 + [f"word {number}" for number in range(16)])


def test_conversation_deleted_during_its_turn(client: openai.OpenAI, backend: TextBackend) -> None:
    """If a conversation is deleted during its turn, the turn fails with 503 or, if streamed, with an error event."""
    conversations: list[str] = []

    def rule(exchange: object) -> Any:
        client.conversations.delete(conversations[-1])
        return says("Fine.")

    backend.play(rule)
    conversations.append(client.conversations.create().id)
    with pytest.raises(openai.InternalServerError, match="could not be added") as caught:
        ask(client, False, input="Hello", conversation=conversations[-1])
    assert caught.value.status_code == 503
    conversations.append(client.conversations.create().id)
    with pytest.raises(openai.APIError, match="could not be added"):
        ask(client, True, input="Hello", conversation=conversations[-1])
