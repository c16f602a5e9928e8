"""Test that answers that a client received completely are stored, even if the proxy is killed at any moment."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import openai
import pytest
from memory.conftest import connect
from support.mitmdump import Mitmdump
from support.text_backend import Exchange, TextBackend, Turn, says

pytestmark = [pytest.mark.slow, pytest.mark.ci]

KILLS = int(os.environ.get("TOOLSIM_KILLS", "6"))
CLIENTS = 3
TURNS = 12
"""The number of turns after which a client starts a new conversation."""


def answer(exchange: Exchange) -> Turn:
    """Check that each earlier question has the correct answer, and answer with the number of earlier turns."""
    texts = [text for _, text in exchange.transcript]
    pairs = list(zip(texts[:-1:2], texts[1::2], strict=True))
    assert all(reply.startswith(f"To {asked}: ") for asked, reply in pairs), texts
    return says(f"To {texts[-1]}: ", f"{len(pairs)} before.")


class Talker:
    """A client whose conversations continue across restarts of the proxy. ``received``: the answers that
    arrived completely.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._count = 0
        self._turns: list[str] = []
        self.received: list[tuple[str, str]] = []
        self.problem: BaseException | None = None

    def talk(self, proxy: Mitmdump, is_killed: threading.Event) -> None:
        try:
            with connect(proxy) as client:
                while not is_killed.is_set():
                    self._ask(client)
        except Exception as problem:
            # The library can raise any exception if its connection is lost. The test checks the turns later.
            if not is_killed.is_set() and not isinstance(problem, openai.APIConnectionError):
                self.problem = problem
        except BaseException as problem:
            self.problem = problem

    def _ask(self, client: openai.OpenAI) -> None:
        self._count += 1
        if len(self._turns) == TURNS:
            self._turns = []
        asked = f"{self._number}/{self._count}"
        more: dict[str, Any] = {"previous_response_id": self._turns[-1]} if self._turns else {}
        if self._count % 2:
            response: Any = client.responses.create(model="m", input=asked, **more)
        else:
            response = None
            with client.responses.create(model="m", input=asked, stream=True, **more) as stream:
                for event in stream:
                    response = event.response if event.type == "response.completed" else response
            if response is None:
                return  # An interrupted answer need not be stored.
        if response.output_text != f"To {asked}: {len(self._turns)} before." or response.store is not True:
            self.problem = AssertionError(f"{asked} after {len(self._turns)}: {response.to_json()}")
        self._turns.append(response.id)
        self.received.append((response.id, response.output_text))


def test_kill_9(backend: TextBackend, tmp_path: Path) -> None:
    """After the proxy is killed and restarted, all completely received answers are stored and can be continued."""
    random, path, talkers = Random(7), tmp_path / "store", [Talker(number) for number in range(CLIENTS)]
    backend.play(answer, chunk_size=4)
    for _ in range(KILLS):
        with Mitmdump(backend.url, toolsim_backend="chat", toolsim_store=f"sqlite:{path}") as proxy:
            is_killed = threading.Event()
            threads = [threading.Thread(target=talker.talk, args=(proxy, is_killed)) for talker in talkers]
            for thread in threads:
                thread.start()
            before = sum(len(talker.received) for talker in talkers)
            end = time.monotonic() + 20
            while sum(len(talker.received) for talker in talkers) == before and time.monotonic() < end:
                time.sleep(0.005)
            time.sleep(random.random() * 0.4)
            is_killed.set()
            os.kill(proxy.pid, signal.SIGKILL)
            for thread in threads:
                thread.join(30)
        assert [talker.problem for talker in talkers] == [None] * CLIENTS
        assert sum(len(talker.received) for talker in talkers) > before
        with closing(sqlite3.connect(path)) as base:
            assert base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            rows = base.execute("SELECT id, value FROM records").fetchall()
            assert base.execute("SELECT records FROM total").fetchone() == (len(rows),)
        there = {id: json.loads(value)["response"]["output"][0]["content"][0]["text"] for id, value in rows}
        for talker in talkers:
            assert [there.get(id) for id, _ in talker.received] == [text for _, text in talker.received]
