"""Tests for token counts if the backend does not report any, for all pairs of APIs, with and without streaming."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from proxy.conftest import CALL
from proxy.test_api_selection import APIS, PATHS, request
from support.line import Line, Reply
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says
from support.wire import ApiName
from toolsim.request.estimate import estimated_tokens


@pytest.fixture(scope="module", params=APIS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[TextBackend, Mitmdump]]:
    """A backend that has only one API and reports no usage, and a proxy in front of it."""
    with TextBackend(apis=[request.param]) as backend:
        backend.has_usage = False
        with Mitmdump(backend.url) as proxy:
            yield backend, proxy


def counts_of(client: ApiName, reply: Reply, *, stream: bool) -> Any:
    """Return the numbers of input and output tokens that the client receives."""
    if not stream:
        counts = reply.json()["usage"]
    elif client == "responses":
        counts = next(event["response"] for event in reply.events() if event["type"] == "response.completed")["usage"]
    elif client == "messages":
        counts = next(event for event in reply.events() if event["type"] == "message_delta")["usage"]
    else:
        counts = reply.events()[-2]["usage"]
    names = ("prompt_tokens", "completion_tokens") if client == "chat" else ("input_tokens", "output_tokens")
    return tuple(counts[name] for name in names)


@pytest.mark.parametrize("client", APIS)
def test_missing_counts_are_estimated(pair: tuple[TextBackend, Mitmdump], client: ApiName) -> None:
    """If the backend reports no token counts, they are estimated and marked as such. Streamed and non-streamed answers
    have the same counts.
    """
    backend, proxy = pair
    found = []
    with Line(proxy.url) as line:
        for stream in (False, True):
            backend.play([says(f"So: {CALL}")])
            more = {"stream_options": {"include_usage": True}} if client == "chat" and stream else {}
            reply = line.post(PATHS[client], request(client, stream=stream, **more, model=f"m-{client}"))
            # Once the proxy knows that the model reports no usage, the headers of later responses mark the counts as
            # estimated.
            assert reply.headers["x-toolsim-usage"] == "estimated"
            found.append(counts_of(client, reply, stream=stream))
            assert found[-1][0] == estimated_tokens(json.loads(backend.exchanges[0].raw))
            assert 10 < found[-1][1] < 50
    assert found[0] == found[1]
    lines = [json.loads(line) for line in proxy.log().splitlines() if "tool_call_count" in line]
    assert all(line["usage_estimated"] for line in lines)
    assert lines[-1]["tokens"]["input"] == found[1][0]


def test_unrequested_usage_is_not_sent(pair: tuple[TextBackend, Mitmdump]) -> None:
    """A chat completions client receives token counts only if it requests them."""
    backend, proxy = pair
    with Line(proxy.url) as line:
        backend.play([says("Sunny.")])
        reply = line.post(PATHS["chat"], request("chat", stream=True, model="m-chat"))
        assert "x-toolsim-usage" not in reply.headers
        assert not any("usage" in event for event in reply.events()[:-1])


def test_backend_counts_pass_unchanged(pair: tuple[TextBackend, Mitmdump]) -> None:
    """If the backend begins to report token counts, they are passed on, and later answers are no longer marked as
    estimated.
    """
    backend, proxy = pair
    with Line(proxy.url) as line:
        backend.has_usage = False
        backend.play([says("Sunny.")])
        line.post(PATHS["responses"], request("responses", model="changes"))
        backend.has_usage = True
        for expected in ("estimated", None):
            backend.play([says("It is sunny.")])
            reply = line.post(PATHS["responses"], request("responses", model="changes", stream=True))
            assert reply.headers.get("x-toolsim-usage") == expected
            assert counts_of("responses", reply, stream=True)[1] == 3


@pytest.mark.parametrize("client", APIS)
def test_counts_of_rounds_are_summed(client: ApiName) -> None:
    """If an answer takes two rounds, its token counts are the sums over both rounds."""
    broken = '<tool_call>{"name":"get_weather","arguments":{oops</tool_call>'
    with (
        TextBackend(apis=["chat"]) as backend,
        Mitmdump(backend.url, toolsim_retry=1) as proxy,
        Line(proxy.url) as line,
    ):
        backend.has_usage = False
        for stream in (False, True):
            backend.play([says(broken), says(CALL)])
            more = {"stream_options": {"include_usage": True}} if client == "chat" and stream else {}
            reply = line.post(PATHS[client], request(client, stream=stream, **more))
            sent = [estimated_tokens(json.loads(exchange.raw)) for exchange in backend.exchanges]
            assert len(sent) == 2
            assert counts_of(client, reply, stream=stream)[0] == sum(sent)
            assert reply.headers.get("x-toolsim-usage") == (None if stream else "estimated")
