"""Tests for requests in the format of one API that are sent to the path of another."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from proxy.test_api_selection import call_of
from support.line import Line
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says
from support.wire import ApiName
from unit.wire.test_foreign import CROSSINGS, PATHS, SAME

CALL = '<tool_call>{"name":"read_file","arguments":{"path":"b.txt"}}</tool_call>'


@pytest.fixture(scope="module", params=["chat", "responses", "messages"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[TextBackend, Mitmdump]]:
    """A backend that has only one API, and a proxy in front of it."""
    with TextBackend(apis=[request.param]) as backend, Mitmdump(backend.url) as proxy:
        yield backend, proxy


@pytest.mark.parametrize(("path", "shape"), CROSSINGS)
def test_answer_has_the_format_of_the_path(pair: tuple[TextBackend, Mitmdump], path: ApiName, shape: ApiName) -> None:
    """Even if the body of a request has the format of another API, the answer has the format of the path's API, with or
    without streaming. The model receives the complete history.
    """
    backend, proxy = pair
    with Line(proxy.url) as line:
        for stream in (True, False):
            backend.play([says(CALL)])
            reply = line.post(PATHS[path], {**SAME[shape], "stream": stream})
            assert reply.status == 200, reply.body
            assert call_of(path, reply) == ("read_file", {"path": "b.txt"})
            shown = "\n".join(text for _, text in backend.exchanges[0].transcript)
            assert all(words in shown for words in ("You are an agent.", "a.txt", "I read it.", "Seven.", "And now?"))


def test_stored_answer_to_chat_format_continues() -> None:
    """If the body of a Responses API request has the chat completions format, its answer is stored and can be
    continued.
    """
    with TextBackend(apis=["chat"]) as backend, Mitmdump(backend.url, toolsim_store="memory") as proxy:
        with Line(proxy.url) as line:
            backend.play([says("Fine.")] * 2)
            first = line.post(
                PATHS["responses"], {"model": "m", "messages": [{"role": "user", "content": "How is it?"}]}
            )
            more = {"model": "m", "previous_response_id": first.json()["id"], "input": "Really?"}
            assert line.post(PATHS["responses"], more).status == 200
        assert [text for _, text in backend.exchanges[1].transcript] == ["How is it?", "Fine.", "Really?"]


def test_background_answer_to_chat_format() -> None:
    """If the body of a background request has the chat completions format, its answer can be polled."""
    with TextBackend(apis=["chat"]) as backend, Mitmdump(backend.url, toolsim_store="memory") as proxy:
        backend.play([says("Fine.")])
        with Line(proxy.url) as line:
            body = {"model": "m", "background": True, "messages": [{"role": "user", "content": "How is it?"}]}
            body["tools"] = SAME["chat"]["tools"]
            queued = line.post(PATHS["responses"], body).json()
            backend.wait_for(1)
            end = time.monotonic() + 30
            while (found := line.request("GET", f"{PATHS['responses']}/{queued['id']}").json())[
                "status"
            ] != "completed":
                assert time.monotonic() < end, found
                time.sleep(0.1)
            items = line.request("GET", f"{PATHS['responses']}/{queued['id']}/input_items").json()["data"]
        assert found["output"][0]["content"][0]["text"] == "Fine."
        assert [item["content"][0]["text"] for item in items] == ["How is it?"]
