"""Tests that an answer that took several rounds is stored as if it had taken only one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from memory.conftest import connect
from memory.test_references import CALL, DAMAGED, TOOLS, ask, both_modes, shown
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says

pytestmark = pytest.mark.slow
STRICT = [{**TOOLS[0], "strict": True}]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rounds") / "store"


@pytest.fixture(scope="module")
def asking(backend: TextBackend, file: Path) -> Iterator[Mitmdump]:
    with Mitmdump(backend.url, toolsim_backend="chat", toolsim_retry=1, toolsim_store=f"sqlite:{file}") as proxy:
        yield proxy


@both_modes
def test_corrected_call_replaces_the_faulty_one(asking: Mitmdump, backend: TextBackend, stream: bool) -> None:
    """Only the corrected call is stored. The conversation continues, and no later prompt contains the faulty call."""
    bad = CALL.replace('"Bonn"', "5")
    backend.play([says("I look. ", bad), says(CALL), says("18 degrees."), says("Rain.")])
    with connect(asking) as client:
        conversation: Any = {"conversation": client.conversations.create().id}
        first = ask(client, stream, input="Weather?", tools=STRICT, **conversation)
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "18"}
        second = ask(client, stream, input=[output], tools=STRICT, **conversation)
        assert second.output_text == "18 degrees."
        ask(client, stream, input="Tomorrow?", tools=STRICT, **conversation)
        prompt = shown(backend)
        assert len(backend.exchanges) == 4
        assert '"city":5' not in prompt.replace(" ", "")
        places = [prompt.index(words) for words in ("Weather?", "Bonn", "=18]", "18 degrees.", "Tomorrow?")]
        assert places == sorted(places)
        assert len({item.id for item in (*first.output, *second.output)}) == len(first.output) + len(second.output)


@both_modes
def test_failing_store_is_reported(backend: TextBackend, tmp_path: Path, stream: bool) -> None:
    """If an answer that took several rounds cannot be stored, the answer reports this."""
    backend.play([says(CALL.replace('"Bonn"', "5")), says(CALL)])
    options: dict[str, Any] = {"toolsim_retry": 1, "toolsim_store": f"sqlite:{tmp_path / 'store'}"}
    with Mitmdump(backend.url, toolsim_backend="chat", **options) as proxy, connect(proxy) as client:
        (tmp_path / "store").write_bytes(DAMAGED)
        answer = ask(client, stream, input="Weather?", tools=STRICT)
        assert (answer.store, answer.output[-1].type) == (False, "function_call")
        assert len(backend.exchanges) == 2
