"""Tests for background answers with the real SDK: polled, streamed, canceled and deleted."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from memory.conftest import connect
from memory.test_references import CALL, TOOLS, shown
from support.mitmdump import Mitmdump
from support.text_backend import Exchange, TextBackend, Turn, says

pytestmark = pytest.mark.slow

SECONDS = 20.0
NEVER = says("One, ", "two.", ending="hang")


def until(what: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Call ``what`` until its result is true, and return the result."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return found


def ended(client: openai.OpenAI, id: str) -> Any:
    """Poll an answer until it ends, and return it."""

    def polled() -> Any:
        response = client.responses.retrieve(id)
        assert response.id == id
        return response if response.status not in ("queued", "in_progress") else None

    return until(polled)


def start(client: openai.OpenAI, **request: Any) -> Any:
    return client.responses.create(model="m", background=True, **request)


class Gate:
    """A model that waits for the event ``open`` before it answers."""

    def __init__(self, *turns: Turn) -> None:
        self.turns = list(turns)
        self.open = threading.Event()

    def __call__(self, exchange: Exchange) -> Turn:
        self.open.wait(SECONDS)
        return self.turns.pop(0)


def test_polled_answer_equals_foreground_answer(client: openai.OpenAI, backend: TextBackend) -> None:
    """A background answer is generated although no client reads it. When complete, it equals a foreground answer."""
    backend.play([says("Hello ", "there.")])
    queued = start(client, input="Hello", metadata={"a": "b"})
    assert (queued.status, queued.background, queued.output, queued.usage) == ("queued", True, [], None)
    whole = ended(client, queued.id)
    assert (whole.status, whole.output_text, whole.background) == ("completed", "Hello there.", True)
    assert (whole.metadata, whole.store, whole.created_at) == ({"a": "b"}, True, queued.created_at)
    assert whole.usage is not None
    (exchange,) = backend.exchanges
    assert exchange.body["stream"] is True
    assert "background" not in exchange.body
    assert "id" in client.responses.input_items.list(queued.id).data[0].to_dict()


def test_truncated_answer_can_be_continued(client: openai.OpenAI, backend: TextBackend) -> None:
    """A background answer that reaches the token limit ends as incomplete, keeps its text, and can be continued."""
    backend.play([says("Hello ", "there.", ending="length"), says("Go on.")])
    cut = ended(client, start(client, input="Hello", max_output_tokens=5).id)
    assert (cut.status, cut.incomplete_details.reason, cut.output_text) == (
        "incomplete",
        "max_output_tokens",
        "Hello there.",
    )
    assert client.responses.create(model="m", input="More", previous_response_id=cut.id).output_text == "Go on."


def test_polled_call_and_its_output(client: openai.OpenAI, backend: TextBackend) -> None:
    """A background answer can contain a call. The client sends the call's output with previous_response_id."""
    backend.play([says("I look.", CALL), says("18 degrees.")])
    first = ended(client, start(client, input="Weather?", tools=TOOLS).id)
    (call,) = [item for item in first.output if item.type == "function_call"]
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "18"}
    started = start(client, input=[output], tools=TOOLS, previous_response_id=first.id)
    second = ended(client, started.id)
    assert (second.output_text, second.previous_response_id) == ("18 degrees.", first.id)
    prompt = shown(backend)
    places = [prompt.index(words) for words in ("Weather?", "I look.", "=18]")]
    assert places == sorted(places)


def test_turn_joins_conversation_when_complete(client: openai.OpenAI, backend: TextBackend) -> None:
    """A background turn is added to its conversation only once the turn is complete."""
    backend.play([says("One."), says("Two.")])
    conversation = client.conversations.create()
    ended(client, start(client, input="First", conversation=conversation.id).id)
    second = ended(client, start(client, input="Second", conversation=conversation.id).id)
    assert second.conversation.id == conversation.id
    listed: list[Any] = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.content[0].text for item in listed] == ["First", "One.", "Second", "Two."]
    backend.play([NEVER])
    started = start(client, input="Third", conversation=conversation.id)
    until(lambda: backend.exchanges and backend.exchanges[0].sent)
    client.conversations.delete(conversation.id)
    client.responses.cancel(started.id)


def test_canceling_stops_the_model(client: openai.OpenAI, backend: TextBackend) -> None:
    """If an answer is canceled, the proxy disconnects from the backend. Canceling the answer a second time, or
    retrieving it, returns the same object.
    """
    backend.play([NEVER])
    started = start(client, input="Count")
    until(lambda: client.responses.retrieve(started.id).status == "in_progress")
    for _ in "12":
        cancelled = client.responses.cancel(started.id)
        assert (cancelled.id, cancelled.status, cancelled.output) == (started.id, "cancelled", [])
    assert client.responses.retrieve(started.id).status == "cancelled"
    assert backend.exchanges[0].over.wait(SECONDS)
    assert not backend.exchanges[0].whole
    with pytest.raises(openai.BadRequestError, match="its status is 'cancelled'"):
        client.responses.create(model="m", input="More", previous_response_id=started.id)
    backend.play([says("Done.")])
    done = start(client, input="Hello")
    ended(client, done.id)
    assert client.responses.cancel(done.id).status == "completed"


def test_deleting_stops_the_model(client: openai.OpenAI, backend: TextBackend) -> None:
    """If a running answer is deleted, the proxy disconnects from the backend. The answer is not found afterwards."""
    backend.play([NEVER])
    started = start(client, input="Count")
    until(lambda: backend.exchanges and backend.exchanges[0].sent)
    client.responses.delete(started.id)
    assert backend.exchanges[0].over.wait(SECONDS)
    for call in client.responses.retrieve, client.responses.cancel, client.responses.delete:
        with pytest.raises(openai.NotFoundError, match=started.id):
            call(started.id)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_failed_answer_stores_its_error(client: openai.OpenAI, backend: TextBackend, stream: bool) -> None:
    """A backend error is stored as the answer's error, but an invalid request is rejected immediately."""
    backend.play([Turn(status=500, message="The model is out.")])
    started = start(client, input="Hello", stream=stream)
    id = next(started).response.id if stream else started.id
    if stream:
        with pytest.raises(openai.APIError, match="The model is out"):
            list(started)
    failed = ended(client, id)
    assert (failed.status, failed.error.message) == ("failed", "The model is out.")
    assert client.responses.cancel(id).status == "failed"
    with pytest.raises(openai.BadRequestError, match="its status is 'failed'"):
        client.responses.create(model="m", input="More", previous_response_id=id)
    for wrong in {"store": False}, {"tools": [{"type": "function", "name": "no name"}]}, {"previous_response_id": "x"}:
        with pytest.raises(openai.BadRequestError):
            start(client, input="Hello", stream=stream, **wrong)
    assert len(backend.exchanges) == 1


def test_answer_is_not_found_with_another_key(client: openai.OpenAI, proxy: Mitmdump, backend: TextBackend) -> None:
    """With another key, a background answer is not found, either while it is running or afterwards."""
    gate = Gate(says("Fine."))
    backend.play(gate)
    started = start(client, input="Hello", stream=True)
    id = next(iter(started)).response.id
    with connect(proxy, "another") as other:
        for _ in "12":
            for call in other.responses.retrieve, other.responses.cancel, other.responses.delete:
                with pytest.raises(openai.NotFoundError):
                    call(id)
            with pytest.raises(openai.NotFoundError):
                other.responses.retrieve(id, stream=True)
            gate.open.set()
            ended(client, id)
    started.close()


def events_of(stream: Any) -> list[Any]:
    return [event.to_dict() for event in stream]


def test_stream_resumes_from_any_event(client: openai.OpenAI, backend: TextBackend) -> None:
    """A stream can be resumed after any event, during and after the answer. The resumed stream has the same events as
    the original.
    """
    backend.play([says(*(f"word {number} " for number in range(10)), pause=0.05)])
    stream = start(client, input="Count", stream=True, tools=TOOLS)
    first = [next(stream).to_dict() for _ in range(8)]
    stream.close()
    assert [event["sequence_number"] for event in first] == list(range(8))
    assert [event["type"] for event in first[:3]] == ["response.created", "response.queued", "response.in_progress"]
    id = first[0]["response"]["id"]
    rest = events_of(client.responses.retrieve(id, stream=True, starting_after=7))
    everything = [*first, *rest]
    assert [event["sequence_number"] for event in everything] == list(range(len(everything)))
    assert everything[-1]["type"] == "response.completed"
    text = "".join(event["delta"] for event in everything if event["type"] == "response.output_text.delta")
    assert text == "".join(f"word {number} " for number in range(10))
    final = client.responses.retrieve(id)
    assert final.to_dict() == everything[-1]["response"]
    for after in 0, 3, len(everything) - 2, len(everything) + 5:
        again = events_of(client.responses.retrieve(id, stream=True, starting_after=after))
        assert again == everything[after + 1 :]
    assert events_of(client.responses.retrieve(id, stream=True)) == everything
    with pytest.raises(openai.BadRequestError, match="starting_after"):
        client.responses.retrieve(id, stream=True, starting_after=-5)
    assert len(backend.exchanges) == 1


def test_sdk_can_start_and_resume(client: openai.OpenAI, backend: TextBackend) -> None:
    """The SDK's ``responses.stream`` can start a background answer and resume its stream."""
    backend.play([says("I look.", CALL)])
    with client.responses.stream(model="m", input="Weather?", tools=TOOLS, background=True) as stream:
        final = stream.get_final_response()
    assert final.output[-1].type == "function_call"
    with client.responses.stream(response_id=final.id, tools=TOOLS) as stream:
        again = stream.get_final_response()
    assert again.to_dict() == final.to_dict()


def test_replies_to_web_pages_have_cors_headers(client: openai.OpenAI, backend: TextBackend) -> None:
    """For web pages from a listed origin, every reply about a background answer has the CORS header."""
    gate = Gate(says("Fine."))
    backend.play(gate)
    origin, page = {"origin": "http://localhost:3000"}, client._client
    body = {"model": "m", "input": "Hello", "background": True}
    started = page.post("responses", json=body, headers=origin)
    path = f"responses/{started.json()['id']}"
    with page.stream("POST", "responses", json={**body, "stream": True}, headers=origin) as streamed:
        id = next(re.finditer(rb'"id":"(resp_\w+)"', next(streamed.iter_bytes())))[1].decode()
    with page.stream("GET", f"responses/{id}?stream=true", headers=origin) as followed:
        answers = [
            started,
            streamed,
            followed,
            page.get(path, headers=origin),
            page.post(f"{path}/cancel", headers=origin),
        ]
    page.post(f"responses/{id}/cancel")
    answers.append(page.get(f"responses/{id}?stream=true&starting_after=0", headers=origin))
    gate.open.set()
    assert [answer.status_code for answer in answers] == [200] * 6
    assert [answer.headers.get("access-control-allow-origin") for answer in answers] == [origin["origin"]] * 6


def test_canceling_ends_the_streams_of_all_followers(
    client: openai.OpenAI, proxy: Mitmdump, backend: TextBackend
) -> None:
    """If an answer is canceled, the stream of each client that follows it ends with an error."""
    backend.play([says(*["word "] * 5, pause=0.02, ending="hang")])
    stream = start(client, input="Count", stream=True)
    id = next(stream).response.id
    with connect(proxy) as one, connect(proxy) as two:
        followers = [follower.responses.retrieve(id, stream=True, starting_after=0) for follower in (one, two)]
        until(lambda: len(backend.exchanges[0].sent) == 5)
        client.responses.cancel(id)
        for followed in (stream, *followers):
            with pytest.raises(openai.APIError, match="was cancelled"):
                list(followed)
    assert client.responses.retrieve(id).status == "cancelled"


def test_unsupported_streaming_and_continuation(client: openai.OpenAI, backend: TextBackend) -> None:
    """An answer that was started without ``stream`` cannot be streamed, and a running answer cannot be continued."""
    gate = Gate(says("Fine."), says("Again."))
    backend.play(gate)
    started = start(client, input="Hello")
    with pytest.raises(openai.BadRequestError, match="cannot be continued: its status is 'queued'"):
        client.responses.create(model="m", input="More", previous_response_id=started.id)
    for _ in "12":
        with pytest.raises(openai.BadRequestError, match="not created with 'stream'"):
            client.responses.retrieve(started.id, stream=True)
        gate.open.set()
        ended(client, started.id)
    assert client.responses.create(model="m", input="More", previous_response_id=started.id).output_text == "Again."
