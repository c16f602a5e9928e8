"""Makes one function fail in one turn of a real mitmdump, and reports the outcome of this turn and of the next turn."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from faults.scenarios import KEY, Scenario, answer_any
from support.mitmdump import Mitmdump
from support.ports import free_port
from support.raw_backend import RawBackend
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import connect

Outcome = Literal["right", "error", "closed", "forwarded raw", "hung", "wrong content", "wrong afterwards", "in flight"]
ALLOWED: tuple[Outcome, ...] = ("right", "error", "closed")
HUNG_SECONDS = float(os.environ.get("HUNG_SECONDS", "10"))
SETTLE_SECONDS = 3.0
PROXIES: dict[str, dict[str, Any]] = {
    "open": {},
    "locked": {"toolsim_api_key": KEY},
    # With retries enabled, answers pass through the code that can request another round.
    "rounds": {"toolsim_retry": 1},
}
ERRORS = ("RuntimeError", "KeyError", "MemoryError", "RecursionError")

_INJECTION = Path(__file__).parent / "injection.py"
# Values that may differ between two correct answers: IDs, times, and whether the answer was stored.
_VARIES = re.compile(
    rb'[0-9a-f]{12,}|"store": ?(?:true|false)|"(?:created|created_at|completed_at)": ?[\d.]+|"(?:date|via)": ?"[^"]*"'
)
_END = re.compile(rb'event: (?:error|response\.failed)|data: \{"(?:type": ?"error"|error")|"type": ?"error"')
_RAW = re.compile(rb"<tool_call>|get_[^w]")
_LAST_EVENTS = ("response.completed", "response.failed", "response.incomplete", "error")
_COMPLETED = re.compile(rb'response\.completed|"finish_reason": ?"(?:stop|tool_calls)"|message_stop')


@dataclass(frozen=True)
class Reply:
    """The answer that a client received.

    ``status``: 0 if no headers arrived; ``is_whole``: whether the answer ended properly; ``earlier``: the answers to
    earlier turns on the same WebSocket connection. Events from a WebSocket connection are written like those of a
    stream.
    """

    status: int
    body: bytes = b""
    is_whole: bool = True
    is_hung: bool = False
    kind: str = ""
    earlier: tuple[bytes, ...] = ()

    @property
    def normal(self) -> tuple[int, tuple[bytes, ...], bytes, bool]:
        return self.status, self.normal_earlier, _VARIES.sub(b"~", self.body), self.is_whole

    @property
    def normal_earlier(self) -> tuple[bytes, ...]:
        return tuple(_VARIES.sub(b"~", body) for body in self.earlier)


@dataclass(frozen=True)
class Result:
    """The outcome of a trial. ``why``: an explanation for the reader of the report."""

    scenario: str
    function: str
    error: str
    outcome: Outcome
    why: str = ""

    @property
    def is_bad(self) -> bool:
        return self.outcome not in ALLOWED


class World:
    """The proxies, by name, and the backend that they share."""

    def __init__(self, proxies: dict[str, tuple[Mitmdump, Any]], backend: RawBackend) -> None:
        self._proxies = proxies
        self._backend = backend
        self._expected: dict[str, tuple[Reply, list[tuple[str, bytes]], str]] = {}

    def functions(self, scenario: Scenario) -> list[str]:
        """Record a scenario's correct answer, and return the functions that its turn calls."""
        self._learn(scenario)
        self._command(scenario, do="record")
        self._ask(scenario)
        time.sleep(0.2)
        found = self._command(scenario, do="functions")
        assert isinstance(found, list)
        return found

    def run(self, scenario: Scenario, function: str, error: str) -> Result | None:
        """Return the outcome of a turn in which this function fails, or None if the turn does not call it."""
        right, sent, _ = self._expected[scenario.name]
        self._command(scenario, do="arm", name=function, error=error)
        reply = self._ask(scenario)
        asked = self._asked()
        state = self._command(scenario, do="state")
        outcome, why = _judge(reply, right, asked, sent)
        if not state["fired"] and outcome == "right":
            return None
        if outcome in ALLOWED and (left := self._left(scenario)):
            outcome, why = "in flight", str(left)
        if outcome in ALLOWED:
            again = self._ask(scenario)
            if again.normal != right.normal or self._asked() != sent:
                outcome, why = "wrong afterwards", _shown(again)
            elif left := self._left(scenario):
                outcome, why = "in flight", str(left)
        return Result(scenario.name, function, error, outcome, why)

    def _learn(self, scenario: Scenario) -> None:
        """Record a turn's correct answer and backend requests. If the turn needs a previous answer, create it first."""
        previous = ""
        if scenario.is_continued:
            first = json.loads(self._send(scenario, scenario.body | {"stream": False}).body)
            previous = first["id"]
        self._expected[scenario.name] = Reply(0), [], previous
        for _ in range(2):  # The first turn does not count: it might import modules and detect the backend's engine.
            right = self._ask(scenario)
        self._expected[scenario.name] = right, self._asked(), previous
        assert (right.status == 200) is scenario.is_admitted, _shown(right)

    def _ask(self, scenario: Scenario) -> Reply:
        previous = self._expected[scenario.name][2]
        more = {"previous_response_id": previous} if previous else {}
        return self._send(scenario, scenario.body | more)

    def _send(self, scenario: Scenario, body: dict[str, Any]) -> Reply:
        self._backend.play(answer_any)
        port = self._proxies[scenario.proxy][0].port
        if scenario.socket_turns:
            return _converse(port, scenario, body)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HUNG_SECONDS)
        status, kind = 0, ""
        try:
            connection.request(
                "POST", scenario.path, json.dumps(body), {"content-type": "application/json", **scenario.headers}
            )
            response = connection.getresponse()
            status, kind = response.status, response.getheader("content-type", "")
            return Reply(status, response.read(), kind=kind)
        except TimeoutError:
            return Reply(status, is_whole=False, is_hung=True, kind=kind)
        except http.client.IncompleteRead as cut:
            return Reply(status, cut.partial, is_whole=False, kind=kind)
        except (ConnectionError, http.client.HTTPException):
            return Reply(status, is_whole=False, kind=kind)
        finally:
            connection.close()

    def _asked(self) -> list[tuple[str, bytes]]:
        """Return the requests that the backend received, without the values that vary between runs."""
        return [(asked.path, _shape(asked.body)) for asked in self._backend.asked if asked.method == "POST"]

    def _left(self, scenario: Scenario) -> dict[str, int]:
        """Wait until no work is in progress. If some work remains at the timeout, return its counts by kind."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            state = self._command(scenario, do="state")["open"]
            left = {kind: count for kind, count in state.items() if count}
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.02)

    def _command(self, scenario: Scenario, **command: str) -> Any:
        lines = self._proxies[scenario.proxy][1]
        lines.write(json.dumps(command) + "\n")
        lines.flush()
        return json.loads(lines.readline())


def _converse(port: int, scenario: Scenario, body: dict[str, Any]) -> Reply:
    """Send the turns over one WebSocket connection, until one of them is not completed."""
    answers: list[bytes] = []
    try:
        with connect(
            f"ws://127.0.0.1:{port}{scenario.path}",
            additional_headers=scenario.headers,
            open_timeout=HUNG_SECONDS,
            close_timeout=HUNG_SECONDS,
        ) as connection:
            more: dict[str, Any] = {}
            for _ in range(scenario.socket_turns):
                answers.append(b"")
                connection.send(json.dumps({"type": "response.create", **body, **more}))
                event: dict[str, Any] = {"type": ""}
                while event["type"] not in _LAST_EVENTS:
                    message = connection.recv(HUNG_SECONDS, decode=False)
                    event = json.loads(message)
                    answers[-1] += f"event: {event['type']}\ndata: ".encode() + message + b"\n\n"
                if event["type"] != "response.completed":
                    break
                more = {"previous_response_id": event["response"]["id"]}
        return _reply(answers)
    except InvalidStatus as refused:
        return Reply(refused.response.status_code, refused.response.body)
    except TimeoutError:
        return _reply(answers, is_whole=False, is_hung=True)
    except (ConnectionClosed, ConnectionError, InvalidHandshake):
        return _reply(answers, is_whole=False)


def _reply(answers: Sequence[bytes], *, is_whole: bool = True, is_hung: bool = False) -> Reply:
    """Return the reply for the answers that arrived over a WebSocket connection.

    ``answers`` is empty if the connection was not opened. If ``is_whole`` is false, the last answer is incomplete.
    """
    if not answers:
        return Reply(0, is_whole=False, is_hung=is_hung)
    *earlier, last = answers
    return Reply(200, last, is_whole, is_hung, "text/event-stream", tuple(earlier))


def _judge(
    reply: Reply, right: Reply, asked: Sequence[tuple[str, bytes]], sent: Sequence[tuple[str, bytes]]
) -> tuple[Outcome, str]:
    """Return the outcome of a turn, and an explanation."""
    if any(request not in sent for request in asked):
        return "forwarded raw", str(asked)[:300]
    if reply.is_hung:
        return "hung", _shown(reply)
    if reply.normal == right.normal:
        return "right", ""
    if _RAW.search(reply.body):
        return "forwarded raw", _shown(reply)
    if reply.normal_earlier != right.normal_earlier[: len(reply.earlier)]:
        return "wrong content", _shown(reply)
    if not reply.is_whole:
        # If the connection closes before the headers have been sent, the client should have received an error status
        # instead.
        if reply.status == right.status == 200:
            return "closed", ""
        return "wrong content", "closed " + _shown(reply)
    if reply.status >= 400:
        return "error", ""
    if "event-stream" in reply.kind and _END.search(reply.body) and not _COMPLETED.search(reply.body):
        return "error", ""
    return "wrong content", _shown(reply)


def _shape(body: bytes) -> bytes:
    """Return a request without the values that vary between runs, and without the order of its fields."""
    # ``store`` is missing if the store has failed.
    request = {name: value for name, value in json.loads(body).items() if name != "store"}
    return _VARIES.sub(b"~", json.dumps(request, sort_keys=True).encode())


def _shown(reply: Reply) -> str:
    return f"{reply.status} {'whole' if reply.is_whole else 'cut'} {reply.body[-300:]!r}"


@contextlib.contextmanager
def world(folder: Path) -> Iterator[World]:
    """Start the backend and the proxies. ``folder``: the location of the proxies' stores."""
    with contextlib.ExitStack() as stack:
        backend = stack.enter_context(RawBackend())
        proxies = {}
        for name, options in PROXIES.items():
            port = free_port()
            proxy = stack.enter_context(
                Mitmdump(
                    backend.url,
                    arguments=("-s", str(_INJECTION)),
                    environment={"FAULTS_PORT": str(port)},
                    allow_crashes=True,
                    toolsim_store=f"sqlite:{folder / name}.sqlite",
                    **options,
                )
            )
            control = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            proxies[name] = proxy, stack.enter_context(control.makefile("rw"))
        yield World(proxies, backend)
