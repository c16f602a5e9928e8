"""Tests for a failing store. Turns that need no stored data are answered; others fail with 503 until the store
recovers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
from memory.conftest import connect
from memory.test_references import DAMAGED, ask
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says

pytestmark = pytest.mark.slow
both_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failing") / "store"


@pytest.fixture(scope="module")
def failing(backend: TextBackend, file: Path) -> Iterator[Mitmdump]:
    with Mitmdump(backend.url, toolsim_backend="chat", toolsim_store=f"sqlite:{file}") as proxy:
        yield proxy


def metrics(proxy: Mitmdump) -> str:
    with connect(proxy) as client:
        return str(client._client.get(f"{proxy.url}/toolsim/metrics").text)


@both_modes
def test_locked_store(failing: Mitmdump, backend: TextBackend, file: Path, stream: bool) -> None:
    """While the store is locked, turns are answered but marked as not stored, and stored answers can still be read."""
    backend.play([says("One."), says("Two."), says("Three."), says("Four.")])
    with connect(failing) as client:
        first = ask(client, stream, input="Hello")
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            second = ask(client, stream, input="Again", previous_response_id=first.id)
            assert (second.output_text, second.store) == ("Two.", False)
            other.execute("ROLLBACK")
        with pytest.raises(openai.BadRequestError, match="not found"):
            ask(client, stream, input="Again", previous_response_id=second.id)
        third = ask(client, stream, input="Again", previous_response_id=first.id)
        assert (third.output_text, third.store) == ("Three.", True)
    assert 'toolsim_store_errors_total{what="write"} ' in metrics(failing)
    failing.wait_for("the store cannot write: .*locked")
    failing.wait_for("the store can write again")


@both_modes
def test_corrupt_store(backend: TextBackend, tmp_path: Path, stream: bool) -> None:
    """If the store is corrupt, a turn without stored data is answered, and a turn that refers to a stored answer fails
    with 503.
    """
    file = tmp_path / "store"
    backend.play([says("One."), says("Two.")])
    with (
        Mitmdump(backend.url, toolsim_backend="chat", toolsim_store=f"sqlite:{file}") as proxy,
        connect(proxy) as client,
    ):
        file.write_bytes(DAMAGED)  # An earlier version of toolsim refused to start with a corrupt store.
        first = ask(client, stream, input="Hello")
        assert (first.output_text, first.store) == ("One.", False)
        with pytest.raises(openai.InternalServerError) as caught:
            ask(client, stream, input="Again", previous_response_id=first.id)
        error: Any = caught.value
        assert (error.status_code, error.code, error.type) == (503, "store_unavailable", "server_error")
        assert str(file) not in str(error)  # Only the operator's log may contain the path of the file.
        file.unlink()
        assert ask(client, stream, input="Hello").store is True
        proxy.wait_for(f"the store cannot .*{file}")


def test_oldest_answers_are_evicted(backend: TextBackend, tmp_path: Path) -> None:
    """The oldest answers are evicted first, but an answer that a continued conversation needs is kept.

    The metrics report the size of the store.
    """
    options: dict[str, Any] = {"toolsim_store": f"sqlite:{tmp_path / 'store'}?answers=3"}
    backend.play(lambda exchange: says("Fine."))
    with Mitmdump(backend.url, toolsim_backend="chat", **options) as proxy, connect(proxy) as client:
        root = ask(client, False, input="A")
        other = ask(client, False, input="B")
        leaf = ask(client, False, input="C", previous_response_id=root.id)
        last = ask(client, False, input="D", previous_response_id=leaf.id)
        with pytest.raises(openai.BadRequestError, match=other.id):
            ask(client, False, input="E", previous_response_id=other.id)
        ask(client, False, input="E", previous_response_id=last.id, store=False)
        assert "A" in [text for _, text in backend.exchanges[-1].transcript]
        text = metrics(proxy)
    assert "toolsim_store_records 3" in text
    assert "toolsim_store_evicted_total 1" in text
    assert "toolsim_store_bytes " in text
