"""Tests for models that greet the user with a JSON call to an undeclared tool. A second round replaces the call with
text.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import h2.connection
import h2.events
import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.io import read_flows_from_paths
from proxy.test_cut import curl
from proxy.test_second_opinion import APIS, BONN, GET_WEATHER, WORDS, body, in_both_modes, word_count
from support.answers import read
from support.line import Line, arrivals
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, Behaviour, RawBackend, stream_of
from support.text_backend import Exchange, Rule, TextBackend, Turn, refuses, says, thinks
from support.wire import DONE, chat_frame

GREETING = '{"name": "greet", "arguments": {"message": "Hello!"}}'
GREETS = f"""
from toolsim.backends.scripted import backend
from toolsim.proxy.addon import ToolSim

def reply(messages):
    return {GREETING!r} if "CLIENT TOOL CATALOG" in str(messages) else {WORDS!r}

backend.reply = reply
addons = [ToolSim()]
"""
GREETED = ["text", GREETING]
SPOKEN = ["text", WORDS]


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend(chunk_size=5) as backend:
        yield backend


def model(answer: Turn | str, words: Turn | None = None) -> Rule:
    """Return a model that answers with ``answer`` if the prompt contains tools, and otherwise with plain text."""
    first, second = says(answer) if isinstance(answer, str) else answer, words or says(WORDS)

    def play(exchange: Exchange) -> Turn:
        return first if "CLIENT TOOL CATALOG" in str(exchange.transcript) else second

    return play


WAYS: dict[str, tuple[Rule, list[list[str]], int]] = {
    "undeclared": (model(GREETING), [SPOKEN], 2),
    "fenced": (model(f"```json\n[{GREETING}]\n```"), [SPOKEN], 2),
    "again": (model(GREETING, says(GREETING)), [GREETED], 2),
    "refused": (model(GREETING, refuses(500, "Gone.")), [GREETED], 2),
    "silent": (model(GREETING, says("", ending="eof")), [GREETED], 2),
    "a call": (model(BONN), [GET_WEATHER], 1),
    "an untagged call": (model('{"name": "get_weather", "arguments": {"city":"Bonn"}}'), [GET_WEATHER], 1),
    "goes on": (model(f"{GREETING} is how to greet."), [["text", f"{GREETING} is how to greet."]], 1),
    "other JSON": (model('{"name": "Ada", "age": 36}'), [["text", '{"name": "Ada", "age": 36}']], 1),
    "cut off": (model(says(GREETING[:-9], ending="length")), [["text", GREETING[:-9]]], 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("way", WAYS)
def test_only_undeclared_greeting_causes_second_round(way: str, api: str, line: Line, backend: TextBackend) -> None:
    """If the model writes a greeting as an undeclared call, there is a second round, with each API and with or without
    streaming. No other answer causes a second round.
    """
    rule, items, rounds = WAYS[way]
    both = []
    for seen, exchanges in in_both_modes(rule, api, line, backend):
        both.append(seen)
        assert len(exchanges) == rounds
        assert seen.usage is not None
        assert items != [SPOKEN] or seen.usage >= word_count(exchanges)
    assert both[0].items == both[1].items == items
    assert both[0].finish == both[1].finish
    assert both[0].usage == both[1].usage


@pytest.mark.slow
@pytest.mark.parametrize("api", ["chat/completions", "responses"])
def test_second_request_has_no_tools(api: str, line: Line, backend: TextBackend) -> None:
    """The second request is the client's request without the tools. It is streamed if the first request was
    streamed.
    """
    backend.play(model(GREETING))
    line.post(f"/v1/{api}", body(api, stream=True, temperature=0.8))
    first, second = backend.exchanges
    assert [text for _, text in second.transcript] == ["What is the meaning of life?"]
    for name in ("model", "top_k", "temperature", "stream"):
        assert first.body[name] == second.body[name]


@pytest.mark.slow
@pytest.mark.parametrize("api", ["chat/completions", "messages"])
def test_text_of_second_round_is_streamed(api: str, line: Line, backend: TextBackend) -> None:
    """The text of the second round is streamed to the client while the model writes it."""
    backend.play(model(GREETING, says("Forty", "-two", ".", pause=0.3)))
    received = list(arrivals(line.begin("POST", f"/v1/{api}", body(api, stream=True))))
    begun = next(when for when, data in received if b"Forty" in data)
    end = next(when for when, data in received if b'"."' in data)
    assert end - begun > 0.5
    assert read(APIS[api], True, [data for _, data in received]).items == [SPOKEN]


@pytest.mark.slow
def test_reasoning_is_not_withheld(line: Line, backend: TextBackend) -> None:
    """The client receives the reasoning of both rounds before the text."""
    backend.play(model(thinks("Hm.", GREETING), thinks("Well.", WORDS)))
    for stream in (False, True):
        reply = line.post("/v1/responses", body("responses", stream=stream))
        places = [reply.body.index(word) for word in (b"Hm.", b"Well.", b"Forty")]
        assert places == sorted(places)
        assert read("responses", stream, [reply.body]).items == [SPOKEN]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_stops_second_round(stream: bool, proxy: Mitmdump, backend: TextBackend) -> None:
    """If the client disconnects during the second round, the round is aborted, and no further request is sent to the
    backend.
    """
    backend.play(model(GREETING, says("Forty", ending="hang")))
    with Line(proxy.url) as line:
        line.send("POST", "/v1/responses", body("responses", stream=stream))
        backend.wait_for(2)
        time.sleep(0.3)
    assert backend.exchanges[1].over.wait(10)
    assert not backend.exchanges[1].whole
    assert len(backend.exchanges) == 2


@pytest.mark.slow
def test_second_round_is_not_buffered(backend: TextBackend, proxy: Mitmdump) -> None:
    """While the client does not read, the proxy stops reading the answer of the second round.

    When the client reads again, it receives the complete text.
    """
    long = ["many words " * 100] * 20_000
    backend.play(model(GREETING, says(*long)))
    with Line(proxy.url) as line:
        response = line.begin("POST", "/v1/chat/completions", body("chat/completions", stream=True))
        backend.wait_for(2)
        sent = -1
        while sent < (sent := len(backend.exchanges[1].sent)):
            assert sent < len(long) / 2
            time.sleep(2)
        assert "".join(re.findall(r'"content":"([^"]*)"', response.read().decode())) == "".join(long)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 1])
def test_keep_alives_and_stop_during_second_round(seconds: int, backend: TextBackend, tmp_path: Path) -> None:
    """While a stream waits for the second round, it contains keep-alives, and the proxy can still be stopped."""
    script = tmp_path / "short.py"
    script.write_text("from toolsim.proxy.addon import ToolSim\n\naddons = [ToolSim(keepalive=0.2)]\n")
    with Mitmdump(backend.url, script=script, toolsim_drain_timeout=seconds) as proxy:
        with Line(proxy.url) as line:
            backend.play(model(GREETING, says(WORDS, pause=2.5)))
            events = line.post("/v1/chat/completions", body("chat/completions", stream=True)).events()
            said = next(number for number, event in enumerate(events) if "Forty" in json.dumps(event))
            assert sum(event["choices"][0]["delta"] == {} for event in events[:said]) >= 2
            backend.play(model(GREETING, says("Forty", ending="hang")))
            response = line.begin("POST", "/v1/chat/completions", body("chat/completions", stream=True))
            received = response.read1()
            while b"Forty" not in received:
                received += response.read1()
            proxy.signal()
            with suppress(http.client.IncompleteRead):
                received += response.read()
        assert b"Forty" in received
        assert not seconds or b"error" in received
        assert proxy.ended() == 0


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_stored_answer_contains_replacement_text(stream: bool, backend: TextBackend) -> None:
    """The stored answer contains the text that replaced the undeclared call. The second round has no stored answer."""
    with Mitmdump(backend.url, toolsim_store="memory", toolsim_backend="chat") as proxy, Line(proxy.url) as line:
        backend.play(model(GREETING))
        for _ in range(2):
            reply = line.post("/v1/responses", body("responses", stream=stream))
            events = reply.events() if stream else []
            answer = events[-2]["response"] if stream else reply.json()
            stored = line.request("GET", f"/v1/responses/{answer['id']}").json()
            assert stored["output"] == answer["output"]
            assert answer["output"][0]["content"][0]["text"] == WORDS
            assert answer["store"] is True
        line.post("/v1/responses", body("responses", stream=stream, previous_response_id=answer["id"]))
        assert WORDS in str(backend.exchanges[-1].transcript)
        assert "greet" not in str(backend.exchanges[-1].transcript)
        metrics = line.request("GET", "/toolsim/metrics").body.decode()
        assert "\ntoolsim_store_records 3\n" in metrics


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_limit_option_or_profile_forbids_second_round(stream: bool, backend: TextBackend) -> None:
    """If the round limit, ``toolsim_second_opinion`` or the profile forbids a second round, the client receives the
    undeclared call as text.
    """
    for options in ({"toolsim_max_rounds": 1}, {"toolsim_second_opinion": "off"}, {"toolsim_profiles": "strict-tags"}):
        with Mitmdump(backend.url, **options) as proxy, Line(proxy.url) as line:
            backend.play(model(GREETING))
            reply = line.post("/v1/chat/completions", body("chat/completions", stream=stream))
            assert read("chat", stream, [reply.body]).items == [GREETED]
            assert len(backend.exchanges) == 1


@pytest.mark.slow
@pytest.mark.parametrize("option", [{"toolsim_retry": 1}, {"toolsim_second_opinion": "on"}])
@pytest.mark.parametrize("stream", [False, True])
def test_answer_in_rounds_is_replaced_too(stream: bool, option: dict[str, Any], backend: TextBackend) -> None:
    """Undeclared calls are also replaced if another option, such as ``toolsim_retry``, enables further rounds."""
    with Mitmdump(backend.url, **option) as proxy, Line(proxy.url) as line:
        backend.play(model(GREETING))
        reply = line.post("/v1/responses", body("responses", stream=stream))
        assert read("responses", stream, [reply.body]).items == [SPOKEN]
        assert len(backend.exchanges) == 2


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_both_rounds_are_recorded(stream: bool, backend: TextBackend, tmp_path: Path) -> None:
    """The report names the undeclared call. Both rounds are recorded, and the recordings can be replayed with the same
    result.
    """
    folder = tmp_path / "captured"
    arguments = ["-w", str(tmp_path / "flows")]
    with Mitmdump(backend.url, toolsim_capture=str(folder), arguments=arguments) as proxy:
        backend.play(model(GREETING), chunk_size=5)
        with Line(proxy.url) as line:
            reply = line.post("/v1/chat/completions", body("chat/completions", stream=stream))
            assert read("chat", stream, [reply.body]).items == [SPOKEN]
            proxy.wait_for(r'"rounds": 2')
            metrics = line.request("GET", "/toolsim/metrics").body.decode()
        log = proxy.log()
    assert 'reason="SECOND_OPINION"' in metrics
    assert '"retries": ["SECOND_OPINION:greet"]' in log
    assert '"dropped_calls": ["SECOND_OPINION:greet"]' in log
    read_flows = [flow for flow in read_flows_from_paths([tmp_path / "flows"]) if isinstance(flow, HTTPFlow)]
    flows = [flow for flow in read_flows if "toolsim" in flow.metadata]
    whole = next(flow for flow in flows if "rounds" in flow.metadata["toolsim"])
    (further,) = (flow for flow in flows if flow is not whole)
    assert whole.comment.startswith("no call · 1 dropped call: SECOND_OPINION:greet · 2 rounds"), whole.comment
    assert (further.metadata["toolsim"]["part_of"], further.metadata["toolsim"]["round"]) == (whole.id, 2)
    assert whole.metadata["toolsim"]["finish"] == "stop"
    assert not whole.metadata["toolsim"]["error"]
    replay = [sys.executable, "-m", "toolsim.recordings.replay", str(folder)]
    replayed = subprocess.run(replay, capture_output=True, text=True, check=False)
    assert replayed.stdout.endswith("2 recorded exchanges, none differ\n"), replayed.stdout + replayed.stderr


@pytest.mark.slow
def test_recorded_first_round_ends_at_the_second(backend: TextBackend, tmp_path: Path) -> None:
    """In the recording of the first round, the answer ends where the second round began. The recording can be replayed
    with the same result.
    """
    with Mitmdump(backend.url, toolsim_retry=1, toolsim_capture=str(tmp_path)) as proxy, Line(proxy.url) as line:
        for stream in (False, True):
            backend.play(model(GREETING), chunk_size=5)
            line.post("/v1/chat/completions", body("chat/completions", stream=stream))
        proxy.wait_for(r'"rounds": 2', count=2)
    replay = [sys.executable, "-m", "toolsim.recordings.replay", str(tmp_path)]
    replayed = subprocess.run(replay, capture_output=True, text=True, check=False)
    assert replayed.stdout.endswith("4 recorded exchanges, none differ\n"), replayed.stdout + replayed.stderr
    assert "only the request" not in replayed.stdout


@pytest.mark.slow
def test_built_in_backend(tmp_path: Path) -> None:
    """An undeclared call from a built-in backend is also replaced with text."""
    script = tmp_path / "greets.py"
    script.write_text(GREETS)
    with Mitmdump(script=script, toolsim_backend="scripted") as proxy, Line(proxy.url) as line:
        proxy.wait_for("scripted backend answers")
        for api, stream in product(APIS, (False, True)):
            reply = line.post(f"/v1/{api}", body(api, stream=stream))
            assert read(APIS[api], stream, [reply.body]).items == [SPOKEN]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_http2_streams_receive_text(stream: bool, proxy: Mitmdump, backend: TextBackend) -> None:
    """Each HTTP/2 stream receives the replacement text, and the connection stays open."""
    backend.play(model(GREETING))
    for answer in curl(proxy, body("chat/completions", stream=stream), 3):
        said = answer.rsplit(b"\n", 1)[0]
        assert read("chat", stream, [said]).items == [SPOKEN]
    assert len(backend.exchanges) == 6


@pytest.mark.slow
def test_http2_reset_ends_only_its_stream(proxy: Mitmdump, backend: TextBackend) -> None:
    """If the client resets an HTTP/2 stream, only that stream and its second round end."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as plain,
        context.wrap_socket(plain) as secured,
    ):
        connection = h2.connection.H2Connection()
        connection.initiate_connection()

        def send(number: int) -> None:
            target = [(":authority", f"127.0.0.1:{proxy.port}"), (":path", "/v1/chat/completions")]
            head = [(":method", "POST"), (":scheme", "https"), *target, ("content-type", "application/json")]
            connection.send_headers(number, head)
            connection.send_data(number, json.dumps(body("chat/completions", stream=True)).encode(), end_stream=True)
            secured.sendall(connection.data_to_send())

        backend.play(model(GREETING, says("Forty", ending="hang")))
        send(1)
        backend.wait_for(2)
        time.sleep(0.3)
        connection.reset_stream(1)
        secured.sendall(connection.data_to_send())
        assert backend.exchanges[1].over.wait(10)
        backend.play(model(GREETING))
        send(3)
        received, is_over = b"", False
        while not is_over:
            for event in connection.receive_data(secured.recv(65536)):
                if isinstance(event, h2.events.DataReceived) and event.stream_id == 3:
                    received += event.data
                is_over |= isinstance(event, h2.events.StreamEnded)
            secured.sendall(connection.data_to_send())
        assert read("chat", True, [received]).items == [SPOKEN]


@pytest.mark.slow
def test_backend_disconnects_after_first_answer(ask: Any) -> None:
    """The client receives the replacement text even if the backend does not end its first answer, resets the
    connection, or continues to send.
    """

    def ends(how: str) -> Behaviour:
        async def behave(answer: Answer) -> None:
            if b"CLIENT TOOL CATALOG" not in answer.asked.body:
                await asyncio.sleep(0.5)
                await stream_of(WORDS)(answer)
                return
            await answer.head(Content_Type="text/event-stream")
            for piece in (chat_frame(GREETING), chat_frame(finish="stop"), *([] if how == "no end" else [DONE])):
                await answer.send(piece)
            await asyncio.sleep(0.1)
            if how == "more":
                await answer.send(chat_frame("more"))
                await answer.wait_until_gone()
            elif how == "reset":
                answer.reset()
            elif how == "hang":
                await answer.wait_until_gone()
            else:
                await answer.end()

        return behave

    with RawBackend() as backend, Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        for how in ("end", "no end", "reset", "more", "hang", "end"):
            backend.play(ends(how))
            reply = line.post("/v1/chat/completions", ask(stream=True))
            assert read("chat", True, [reply.body]).items == [SPOKEN], how
            assert len(backend.asked) == 2


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_prose_and_other_json_pass_unchanged(stream: bool, backend: TextBackend) -> None:
    """Prose and other JSON reach the client unchanged, except that the text can be split into deltas at other
    positions.
    """
    texts = ["Hello!", f"{GREETING} so", '{"name": "Ada", "age": 36}', "```json\n[1]\n```", f"Hm. {GREETING}"]
    answers = []
    for option in ("off", "undeclared"):
        with Mitmdump(backend.url, toolsim_second_opinion=option) as proxy, Line(proxy.url) as line:
            received = []
            for text in texts:
                backend.play([says(text)], chunk_size=3)
                whole = line.post("/v1/chat/completions", body("chat/completions", stream=stream)).body
                whole = re.sub(rb'"(id|created)": ?("[^"]*"|\d+)', b"", whole)
                text_parts = re.findall(rb'"content":("(?:[^"\\]|\\.)*")', whole)
                events = dict.fromkeys(re.sub(rb'"content":"(?:[^"\\]|\\.)+"', b"", whole).split(b"\n\n"))
                received.append(("".join(map(json.loads, text_parts)), [*events]))
            answers.append(received)
    assert answers[0] == answers[1]
