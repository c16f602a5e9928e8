"""Tests for required JSON, with backends that enforce, ignore or reject the format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from support.answers import read
from support.line import Line, Reply
from support.mitmdump import Mitmdump
from support.text_backend import Exchange, Rule, TextBackend, Turn, refuses, says
from support.wire import ApiName

APIS: dict[ApiName, str] = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
RIGHT = '{"city": "Bonn", "people": 330000}'
PROSE = "Bonn has about 330,000 inhabitants."
WRONG = '{"city": "Bonn", "people": "many"}'
FENCED = f"```json\n{RIGHT}\n```"
RULE = "Your answer must be one JSON object"
FORMATS = ("response_format", "text", "output_config")
REFUSAL = "This response_format type is unavailable now"


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend(chunk_size=5, apis=tuple(APIS)) as backend:
        yield backend


@pytest.fixture(scope="module")
def proxies(backend: TextBackend) -> Iterator[dict[ApiName, Mitmdump]]:
    with (
        Mitmdump(backend.url, toolsim_backend="chat") as chat,
        Mitmdump(backend.url, toolsim_backend="responses") as responses,
        Mitmdump(backend.url, toolsim_backend="messages") as messages,
    ):
        yield {"chat": chat, "responses": responses, "messages": messages}


def body(api: ApiName, model: str, *, stream: bool, schema: Any = SCHEMA) -> dict[str, Any]:
    wanted = {"type": "json_schema", "name": "city", "schema": schema, "strict": True}
    question = "How many people live in Bonn?"
    asked: dict[str, Any] = {"model": model, "stream": stream}
    if api == "responses":
        return asked | {"input": question, "text": {"format": wanted}}
    asked |= {"messages": [{"role": "user", "content": question}]}
    if api == "messages":
        return asked | {"max_tokens": 99, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    nested = {key: value for key, value in wanted.items() if key != "type"}
    return asked | {"response_format": {"type": "json_schema", "json_schema": nested}}


def post(proxy: Mitmdump, api: ApiName, asked: dict[str, Any]) -> Reply:
    with Line(proxy.url) as line:
        return line.post(f"/v1/{APIS[api]}", asked)


def model(first: Turn, told: Turn) -> Rule:
    """Return a model that answers with ``told`` if the prompt describes the required JSON, and otherwise with
    ``first``.
    """
    return lambda exchange: told if RULE in str(exchange.transcript) else first


def has_format(exchange: Exchange) -> bool:
    text = exchange.body.get("text")
    return "response_format" in exchange.body or "output_config" in exchange.body or "format" in (text or {})


WAYS: dict[str, tuple[Rule, str | None, int]] = {
    "enforced": (model(says(RIGHT), says("no")), RIGHT, 1),
    "ignored": (model(says(PROSE), says(RIGHT)), RIGHT, 2),
    "ignored, then fenced": (model(says(PROSE), says(FENCED)), RIGHT, 2),
    "fenced": (model(says(FENCED), says("no")), RIGHT, 1),
    "fenced in prose": (model(says(f"Here it is:\n\n{FENCED}\n\nAnything else?"), says("no")), RIGHT, 1),
    "thinks aloud": (model(says(f"<think>\nWell {{.\n</think>\n\n{RIGHT}"), says("no")), RIGHT, 1),
    "rejected": (model(refuses(400, REFUSAL), says(RIGHT)), RIGHT, 2),
    "never": (model(says(PROSE), says(PROSE)), None, 2),
    "cut off": (model(says(RIGHT[:-9], ending="length"), says("no")), RIGHT[:-9], 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("served", APIS)
def test_answers_are_equal_streamed_or_not(
    served: ApiName, api: ApiName, way: str, proxies: dict[ApiName, Mitmdump], backend: TextBackend
) -> None:
    """For each pair of client and backend APIs, the client receives either the required JSON or an error. Streaming
    does not change the result.
    """
    rule, text, rounds = WAYS[way]
    for stream in (False, True):
        backend.play(rule, chunk_size=5)
        reply = post(proxies[served], api, body(api, f"{way} {api} {stream}", stream=stream))
        seen = read(api, stream, [reply.body], reply.status)
        assert len(backend.exchanges) == rounds, backend.exchanges
        first, last = backend.exchanges[0], backend.exchanges[-1]
        assert has_format(first)
        assert has_format(last) == (rounds == 1)
        assert (RULE in str(last.transcript)) == (rounds == 2)
        if text is None:
            assert seen.error in ("invalid_answer", "api_error")
            assert reply.status == (200 if stream else 502)
            assert PROSE not in reply.body.decode()
        else:
            assert seen.items == [["text", text]], reply.body


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
def test_compliant_answer_passes_byte_for_byte(
    api: ApiName, proxies: dict[ApiName, Mitmdump], backend: TextBackend
) -> None:
    """If the backend complies with the schema, a request and its stream are forwarded byte for byte. The JSON of a
    non-streamed answer is also unchanged.
    """
    for stream in (False, True):
        backend.play([says(RIGHT)], chunk_size=5)
        sent = json.dumps(body(api, f"obeys {api}", stream=stream), indent=1).encode()
        with Line(proxies[api].url) as line:
            reply = line.request("POST", f"/v1/{APIS[api]}", sent)
        (exchange,) = backend.exchanges
        assert exchange.raw == sent
        if stream:
            assert reply.body == b"".join(exchange.chunks)
        else:
            assert "x-toolsim-mode" not in {name.lower() for name in reply.headers}
            assert b'"id": "' in reply.body
            assert read(api, False, [reply.body]).items == [["text", RIGHT]]


@pytest.mark.slow
@pytest.mark.parametrize(("api", "stream"), [*product(APIS, (False, True))])
def test_failure_to_comply_is_remembered(
    api: ApiName, stream: bool, proxies: dict[ApiName, Mitmdump], backend: TextBackend
) -> None:
    """If a model has ignored the required format, later prompts for that model describe the format as text."""
    for name, rounds in ((f"forgets {api} {stream}", 2), (f"forgets {api} {stream}", 1)):
        backend.play(model(says(PROSE), says(RIGHT)), chunk_size=5)
        reply = post(proxies[api], api, body(api, name, stream=stream))
        assert read(api, stream, [reply.body]).items == [["text", RIGHT]]
        assert len(backend.exchanges) == rounds
    assert '"people"' in str(backend.exchanges[0].transcript)
    backend.play([says(RIGHT)])
    post(proxies[api], api, body(api, "another", stream=stream))
    assert has_format(backend.exchanges[0])


@pytest.mark.slow
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_format_without_a_field_is_in_the_prompt(
    api: ApiName, proxies: dict[ApiName, Mitmdump], backend: TextBackend
) -> None:
    """The Messages API has no field for the format ``json_object``, so the prompt requires JSON from the start."""
    asked = body(api, f"object {api}", stream=False)
    wanted = {"type": "json_object"}
    asked |= {"text": {"format": wanted}} if api == "responses" else {"response_format": wanted}
    backend.play(model(says(PROSE), says(FENCED)))
    reply = post(proxies["messages"], api, asked)
    assert read(api, False, [reply.body]).items == [["text", RIGHT]]
    assert len(backend.exchanges) == 1


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
def test_json_that_becomes_invalid_ends_with_an_error(
    api: ApiName, proxies: dict[ApiName, Mitmdump], backend: TextBackend
) -> None:
    """If JSON turns out to be invalid after part of it has been sent, the stream ends with an error."""
    backend.play([says(WRONG)], chunk_size=5)
    reply = post(proxies[api], api, body(api, f"turns {api}", stream=True))
    assert read(api, True, [reply.body]).error in ("invalid_answer", "api_error")


@pytest.mark.slow
@pytest.mark.parametrize(("api", "stream"), [*product(APIS, (False, True))])
def test_retries_stay_within_the_limit(api: ApiName, stream: bool, backend: TextBackend) -> None:
    """With ``toolsim_retry``, a model that ignores the format is shown its answer and tries again, until the limit is
    reached.
    """
    with Mitmdump(backend.url, toolsim_backend=api, toolsim_retry=2) as proxy:
        backend.play([says(PROSE), says(WRONG), says(RIGHT)], chunk_size=5)
        reply = post(proxy, api, body(api, "m", stream=stream))
        assert read(api, stream, [reply.body]).items == [["text", RIGHT]]
        backend.play([says(WRONG), says(PROSE), says(RIGHT)], chunk_size=5)
        reply = post(proxy, api, body(api, "m", stream=stream))
        assert read(api, stream, [reply.body]).items == [["text", RIGHT]]
        shown = str(backend.exchanges[-1].transcript)
        assert WRONG in shown
        assert PROSE in shown
        backend.play([says(PROSE)] * 3, chunk_size=5)
        reply = post(proxy, api, body(api, "m", stream=stream))
        assert read(api, stream, [reply.body], reply.status).error in ("invalid_answer", "api_error")


@pytest.mark.slow
@pytest.mark.parametrize("served", ["chat", "responses"])
def test_stored_answer_equals_sent_answer(served: ApiName, backend: TextBackend) -> None:
    """The stored answer equals the answer that the client has received, streamed or not."""
    with Mitmdump(backend.url, toolsim_backend=served, toolsim_store="memory") as proxy:
        for stream in (False, True):
            backend.play(model(says(PROSE), says(FENCED)), chunk_size=5)
            reply = post(proxy, "responses", body("responses", f"stored {stream}", stream=stream))
            made = (
                next(e["response"] for e in reply.events() if e["type"] == "response.completed")
                if stream
                else reply.json()
            )
            assert made["status"] == "completed"
            with Line(proxy.url) as line:
                stored = line.request("GET", f"/v1/responses/{made['id']}").json()
            assert [part["text"] for item in stored["output"] for part in item["content"]] == [RIGHT]


@pytest.mark.slow
@pytest.mark.parametrize("served", ["chat", "responses"])
def test_json_answer_over_websocket(served: ApiName, proxies: dict[ApiName, Mitmdump], backend: TextBackend) -> None:
    """A WebSocket request for JSON is answered with the required JSON or an error, like an HTTP request."""
    client = pytest.importorskip("websockets.sync.client", reason="needs the extra [clients]")
    for told, expected in ((says(RIGHT), "response.completed"), (says(PROSE), "response.failed")):
        backend.play(model(says(PROSE), told), chunk_size=5)
        name = f"socket {served} {expected}"
        with client.connect(f"ws{proxies[served].url.removeprefix('http')}/v1/responses") as connection:
            asked = body("responses", name, stream=True)
            del asked["stream"]
            connection.send(json.dumps({"type": "response.create", **asked}))
            events = [json.loads(connection.recv(timeout=20))]
            while events[-1]["type"] not in ("response.completed", "response.failed", "error"):
                events.append(json.loads(connection.recv(timeout=20)))
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        assert (text, len(backend.exchanges)) == (RIGHT if expected == "response.completed" else "", 2)
        assert events[-1]["type"] == expected
