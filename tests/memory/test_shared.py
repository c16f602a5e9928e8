"""Two proxies behind a load balancer share a Redis, and conversations continue while one proxy and Redis are restarted.

The model's answer contains the conversation's first message and length, so any loss or mix-up is detected immediately.
``TOOLSIM_CONVERSATIONS`` sets the number of conversations.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from memory.test_references import ask
from support.haproxy import haproxy
from support.mitmdump import Mitmdump
from support.ports import free_port
from support.redis_server import RedisServer
from support.text_backend import Exchange, TextBackend, Turn, says

pytestmark = pytest.mark.slow
CONVERSATIONS = int(os.environ.get("TOOLSIM_CONVERSATIONS", "30"))
TURNS = 5


def echo(exchange: Exchange) -> Turn:
    """Answer with the first user message in the conversation, and the number of user messages."""
    questions = [text for role, text in exchange.transcript if role == "user"]
    return says(f"{questions[0]} {len(questions)}")


class Tally:
    """Counts the outcomes of the turns."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1


def converse(url: str, number: int, tally: Tally) -> None:
    """Run one conversation. Repeat turns that fail with a clear error, are interrupted, or are not stored."""
    previous: dict[str, Any] = {}
    with openai.OpenAI(base_url=f"{url}/v1", api_key=f"key-{number % 3}", max_retries=0, timeout=20) as client:
        for turn in range(1, TURNS + 1):
            for _ in range(60):
                try:
                    answer = ask(client, turn % 2 == 0, input=f"conversation-{number}", **previous)
                except openai.BadRequestError as error:
                    raise AssertionError(f"lost after it was answered: {error}") from error
                except openai.APIError as error:
                    tally.note(f"clear error: {type(error).__name__}")
                    time.sleep(0.2)
                    continue
                except Exception as error:  # The stream was interrupted.
                    tally.note(f"broken off: {type(error).__name__}")
                    time.sleep(0.2)
                    continue
                assert answer.output_text == f"conversation-{number} {turn}", "crossed, or lost in part"
                tally.note("answered")
                if answer.store:
                    previous = {"previous_response_id": answer.id}
                    break
                # The answer was marked as not stored, so repeat the turn, as a client would in order to continue.
                tally.note("not kept, and said so")
                time.sleep(0.2)
            else:
                raise AssertionError(f"turn {turn} of conversation {number} never came")
    tally.note("conversations")


def test_conversations_survive_restarts(tmp_path: Path) -> None:
    """Every conversation ends correctly, even if one proxy and then Redis are killed and restarted in the meantime."""
    port, *ports = (free_port() for _ in range(3))
    tally, redis = Tally(), RedisServer(append=True)

    def proxy(at: int, backend: TextBackend) -> Mitmdump:
        return Mitmdump(
            backend.url,
            toolsim_backend="chat",
            toolsim_store=redis.url,
            arguments=["--listen-port", str(ports[at])],
            allow_crashes=True,
        )

    with ExitStack() as stack:
        stack.enter_context(redis)
        backend = stack.enter_context(TextBackend(echo))
        stack.enter_context(haproxy(tmp_path, port, ports))
        stack.enter_context(proxy(0, backend))
        pool = stack.enter_context(ThreadPoolExecutor(16))
        second = proxy(1, backend)
        second.__enter__()
        url = f"http://127.0.0.1:{port}"
        conversations = [pool.submit(converse, url, number, tally) for number in range(CONVERSATIONS)]

        def wait_for(share: float) -> None:
            while tally.counts["answered"] < share * CONVERSATIONS * TURNS:
                assert not any(conversation.done() and conversation.exception() for conversation in conversations)
                time.sleep(0.05)

        wait_for(0.2)
        second.kill()
        wait_for(0.4)
        second = proxy(1, backend)
        second.__enter__()
        wait_for(0.6)
        redis.stop()
        time.sleep(0.5)
        redis.__enter__()
        for conversation in conversations:
            conversation.result()
        second.__exit__(None, None, None)
    assert tally.counts["conversations"] == CONVERSATIONS
    print(re.sub(r"^Counter", "", str(tally.counts)))
