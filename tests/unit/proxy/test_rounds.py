"""The flows of rounds, and the delegation of a client's flow to the round runner. Complete rounds are tested in
tests/proxy.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.test import tflow
from toolsim.core.events import Ended, TextDelta
from toolsim.core.policy import Policy, Profile
from toolsim.core.report import Report
from toolsim.mcp.approvals import Approvals
from toolsim.mcp.servers import Server
from toolsim.proxy import rounds as module
from toolsim.proxy.exchange import Exchange
from toolsim.proxy.jobs import ROUNDS_OFF, run
from toolsim.proxy.metadata import NOTE
from toolsim.proxy.options.settings import Limits
from toolsim.proxy.round_flow import RoundFlow
from toolsim.proxy.rounds import _ASKED, MAX_BODY_BYTES, Rounds, RoundSource, round_of
from toolsim.rounds.hosted_calls import McpContext
from toolsim.rounds.load import MAX_CHARS
from toolsim.rounds.round_planner import Round, RoundLimits
from toolsim.wire.apis import CHAT

BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
}
RAW = json.dumps(BODY, indent=1).encode()


@pytest.fixture
async def rounds() -> AsyncIterator[Rounds]:
    rounds = Rounds(10)
    yield rounds
    await rounds.stop()


def asked(content: bytes = RAW) -> HTTPFlow:
    flow = tflow.tflow()
    flow.request.host, flow.request.port, flow.request.path = "backend", 81, "/v1/chat/completions"
    flow.request.method, flow.request.content = "POST", content
    return flow


def opened() -> Exchange:
    return Exchange(Report(), client_id="c", cors={}, limits=Limits())


def test_first_round_is_the_clients_request() -> None:
    """The first round sends the client's body byte for byte. Every round uses the target and the headers of the
    client's request.
    """
    flow = asked()
    flow.request.headers["authorization"] = "Bearer k"
    flow.request.headers["content-encoding"] = "gzip"
    origin = RoundSource(flow, RAW, BODY)
    flow.request.host = "elsewhere"
    first = origin.flow(Round(1, BODY, Policy()))
    assert first.request.raw_content == RAW
    assert first.request.url == "http://backend:81/v1/chat/completions"
    assert first.request.headers["authorization"] == "Bearer k"
    assert "content-encoding" not in first.request.headers
    second = origin.flow(Round(2, BODY | {"model": "n"}, Policy()))
    assert second.request.json()["model"] == "n"
    assert second.id != first.id
    assert first.live
    assert first.client_conn.peername == flow.client_conn.peername
    assert first.client_conn.id != flow.client_conn.id


async def test_delegated_request_keeps_its_target(rounds: Rounds) -> None:
    """A delegated request is sent to the port of the round runner. When the exchange closes, its flow shows the
    original target again.
    """
    flow = asked()
    before = flow.request.copy()
    exchange = opened()
    assert rounds.take(flow, exchange, CHAT, Policy(retry=1), RoundLimits())
    assert (flow.request.host, flow.request.path) == ("127.0.0.1", "/v1/chat/completions")
    assert flow.request.port != 81
    assert flow.request.raw_content == RAW
    exchange.close(flow, 200)
    assert flow.request.url == before.url
    assert flow.request.headers == before.headers
    exchange.close(None, None)


@pytest.mark.parametrize(
    "content",
    [b"no JSON", b"\xff", b"{}", b'{"messages": 5, "tools": [{"type": "function"}]}'],
)
async def test_invalid_request_is_not_delegated(content: bytes, rounds: Rounds) -> None:
    """A request that cannot be parsed, or that has no tools, is not delegated."""
    flow = asked(content)
    assert not rounds.take(flow, opened(), CHAT, Policy(retry=1), RoundLimits())
    assert flow.request.host == "backend"


def warnings_of(rounds: Rounds, flow: HTTPFlow, policy: Policy, mcp_context: McpContext | None = None) -> list[str]:
    """Return the warnings for a request that is too large for several rounds."""
    exchange = opened()
    assert not rounds.take(flow, exchange, CHAT, policy, RoundLimits(), mcp_context)
    assert exchange.marks_of_rounds is not None
    assert flow.request.host == "backend"
    job = exchange.request_job(flow, "chat", policy)
    assert job is not None
    return run(job).report.warnings


@pytest.mark.parametrize(
    ("content", "policy", "warns"),
    [
        (RAW, Policy(retry=1), True),
        (RAW.replace(b"tools", b"mools"), Policy(retry=1), False),
        (RAW, Policy(), False),
        (RAW, Policy(known_profiles=(Profile("p", ("m",), (("second_opinion", "on"),)),)), True),
        (RAW, Policy(known_profiles=(Profile("p", ("other",), (("second_opinion", "on"),)),)), False),
    ],
)
async def test_request_too_large_for_rounds_causes_a_warning(
    content: bytes, policy: Policy, warns: bool, rounds: Rounds
) -> None:
    """A request that is too large for several rounds causes a warning only if it could otherwise have used several
    rounds.
    """
    flow = asked(content + b" " * MAX_BODY_BYTES)
    assert warnings_of(rounds, flow, policy) == ([ROUNDS_OFF] if warns else [])


async def test_large_mcp_request_causes_a_warning(rounds: Rounds) -> None:
    """A request that is too large for MCP calls causes a warning if the operator has configured MCP servers or the
    request declares MCP servers.
    """
    nobody: Any = None  # No server is contacted.
    of_file = McpContext(nobody, Approvals(), {"files": Server("files", ("x",))})
    of_clients = McpContext(nobody, Approvals(), runs_clients=True)
    for mcp_context, content, warns in (
        (of_file, b"{}", True),
        (of_clients, b"{}", False),
        (of_clients, b'{"tools": [{"type": "mcp"}]}', True),
    ):
        flow = asked(content + b" " * MAX_BODY_BYTES)
        assert warnings_of(rounds, flow, Policy(), mcp_context) == ([ROUNDS_OFF] if warns else [])


def test_round_is_recognized_by_its_flow() -> None:
    """A round is recognized by the ID of its flow. In a stored flow, a round is recognized by metadata that no client
    can forge.
    """
    flow = tflow.tflow()
    assert round_of(flow) is None
    report = Report(round=2, part_of="x")
    made = RoundFlow(frozenset({"NO_CALL"}), "<tool", frozenset({"a__b"}), report, is_side_request=True)
    _ASKED[flow.id] = made
    try:
        assert round_of(flow) is made
    finally:
        del _ASKED[flow.id]
    flow.metadata[NOTE] = {"round": made.note()}
    flow.live = True
    assert round_of(flow) is None
    flow.live = False
    assert round_of(flow) == made


class Played:
    """A stub for a round that emits events while it is allowed to read from the backend."""

    def __init__(self, flow: HTTPFlow, *_: object) -> None:
        self.flow = flow
        self.reading = asyncio.Event()
        self.reading.set()
        self.emitted = 0

    async def run(self) -> None:
        listen = _ASKED[self.flow.id].listener
        assert listen is not None
        for _ in range(100):
            await self.reading.wait()
            listen([TextDelta("x" * 10_000)], None)
            self.emitted += 1
        listen([Ended()], None)

    async def leave(self) -> None:
        raise AssertionError("the round was read to its end")


async def test_backend_is_not_read_while_data_waits(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend is not read while too much data is waiting to be sent to the client. No event is lost."""
    played: list[Played] = []
    monkeypatch.setattr(module, "ctx", SimpleNamespace(options=None))
    monkeypatch.setattr(module, "FlowHandler", lambda *given: played.append(Played(*given)) or played[0])
    count = 0
    async with aclosing(rounds.asking(asked(), "owner", RAW, BODY)(Round(1, BODY, Policy()))) as events:
        async for event in events:
            count += isinstance(event, TextDelta)
            for _ in range(5):
                await asyncio.sleep(0)
            assert played[0].emitted <= count + MAX_CHARS // 10_000 + 1
    assert count == 100
