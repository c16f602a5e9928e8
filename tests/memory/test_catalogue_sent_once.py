"""Over a backend that stores its own answers, the catalogue is sent once per conversation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from memory.conftest import connect
from memory.test_references import CALL, TOOLS, ask, both_modes
from support.mitmdump import Mitmdump
from support.text_backend import Exchange, TextBackend, refuses, says
from toolsimlib.request.manifest import HEADING
from toolsimrec.replay import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def storing(backend: TextBackend) -> Iterator[openai.OpenAI]:
    """A proxy without a store: the backend's answers have ids, and requests continue from them."""
    with Mitmdump(backend.url, toolsim_backend="responses") as proxy, connect(proxy) as client:
        yield client


def catalogues(exchange: Exchange) -> int:
    return sum(text.count(HEADING) for _, text in exchange.transcript)


@both_modes
def test_a_conversation(storing: openai.OpenAI, backend: TextBackend, stream: bool) -> None:
    """The catalogue is sent with the first turn, not with the next ones, and again when a tool has changed."""
    backend.play([says("I look. ", CALL), says(CALL), says("Once more. ", CALL), says("Fine."), says("Done.")])
    ids: list[str] = []
    last = ask(storing, stream, input="Weather?", tools=TOOLS)
    changed: list[Any] = [{**TOOLS[0], "description": "Another one."}]
    for tools in TOOLS, TOOLS, changed, changed:
        call = next((item for item in last.output if item.type == "function_call"), None)
        new: Any = "And?"
        if call is not None:
            ids.append(call.call_id)
            new = [{"type": "function_call_output", "call_id": call.call_id, "output": "18"}]
        last = ask(storing, stream, input=new, tools=tools, previous_response_id=last.id)
    assert last.output_text == "Done."
    assert [catalogues(exchange) for exchange in backend.exchanges] == [1, 0, 0, 1, 0]
    assert all("Reminder" in str(exchange.transcript[-1]) for exchange in backend.exchanges[1:])
    assert len(set(ids)) == 3


@both_modes
def test_what_is_uncertain(storing: openai.OpenAI, backend: TextBackend, stream: bool) -> None:
    """It is sent again after an answer that was not to be stored, one that broke off, and one that we have not seen."""
    backend.play([says("One."), says("Two."), says("Thr", ending="eof"), says("Four."), refuses(404, "gone")])
    first = ask(storing, stream, input="Hello", tools=TOOLS, store=False)
    second = ask(storing, stream, input="Hello", tools=TOOLS, previous_response_id=first.id)
    with pytest.raises((openai.APIError, AssertionError)):
        ask(storing, stream, input="More", tools=TOOLS, previous_response_id=second.id)
    ask(storing, stream, input="More", tools=TOOLS, previous_response_id="resp_of_another_proxy")
    with pytest.raises(openai.NotFoundError):
        ask(storing, stream, input="More", tools=TOOLS, previous_response_id=second.id, truncation="auto")
    assert [catalogues(exchange) for exchange in backend.exchanges] == [1, 1, 0, 1, 1]


def test_an_answer_that_is_deleted(storing: openai.OpenAI, backend: TextBackend) -> None:
    """The catalogue is sent again in its conversation, from wherever that continues; in no other one."""
    backend.play([says("One."), says("Two."), says("Other."), says("Three."), says("Four."), says("More.")])
    first = ask(storing, False, input="Hello", tools=TOOLS)
    second = ask(storing, False, input="And?", tools=TOOLS, previous_response_id=first.id)
    other = ask(storing, False, input="Hello", tools=TOOLS)
    with pytest.raises(openai.APIStatusError):  # This backend cannot delete; others may have deleted it.
        storing.responses.delete(first.id)
    third = ask(storing, False, input="And?", tools=TOOLS, previous_response_id=second.id)
    ask(storing, False, input="And?", tools=TOOLS, previous_response_id=third.id)
    ask(storing, False, input="And?", tools=TOOLS, previous_response_id=other.id)
    assert [catalogues(exchange) for exchange in backend.exchanges] == [1, 0, 1, 1, 0, 0]


def test_recordings_replay(backend: TextBackend, tmp_path: Path) -> None:
    """A request that was sent without its catalogue replays without it, though the reason is no longer cached."""
    backend.play([says("One."), says("Two.")])
    options = {"toolsim_backend": "responses", "toolsim_capture": str(tmp_path)}
    with Mitmdump(backend.url, **options) as proxy, connect(proxy) as client:
        first = ask(client, False, input="Hello", tools=TOOLS)
        ask(client, False, input="Hello", tools=TOOLS, previous_response_id=first.id)
    assert [catalogues(exchange) for exchange in backend.exchanges] == [1, 0]
    # All files are written by the time the proxy has exited.
    assert len(list(tmp_path.glob("*.flow"))) == 2
    assert main([str(tmp_path)]) == 0
