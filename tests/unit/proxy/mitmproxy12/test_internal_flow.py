"""Tests that concurrent internal flows take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from mitmproxy import ctx
from mitmproxy.addons.clientplayback import ReplayHandler
from mitmproxy.proxy.events import DataReceived, Event
from mitmproxy.test import taddons, tflow
from toolsim.core.turns import STEPS, Turns
from toolsim.proxy.mitmproxy12 import internal_flow as module
from toolsim.proxy.mitmproxy12.internal_flow import LARGE_BYTES, FlowHandler

FLOWS = 8


class Stage:
    """Several flows of one owner, with the number of the event loop iteration in which each flow did its work."""

    def __init__(self) -> None:
        self.worked: list[int] = []
        self._iteration = 0
        self.flows = [FlowHandler(tflow.tflow(), ctx.options, "test", "owner") for _ in range(FLOWS)]

    async def work(self, flow: FlowHandler, _: Event | None = None) -> None:
        """Simulate the work of mitmproxy's layers. Afterward, the flow is done."""
        self.worked.append(self._iteration)
        flow.done.set()

    async def together(self, do: Callable[[FlowHandler], Awaitable[None]]) -> list[int]:
        """Run ``do`` for all flows at once. Return how many event loop iterations passed between the work of one flow
        and the work of the next.
        """
        self.worked.clear()
        doing = asyncio.gather(*(do(flow) for flow in self.flows))
        while not doing.done():
            await asyncio.sleep(0)
            self._iteration += 1
        await doing
        assert len(self.worked) == FLOWS
        return [after - before for before, after in pairwise(self.worked)]

    async def read(self, flow: FlowHandler, size: int) -> None:
        """Let a flow read ``size`` bytes, and return when the flow can read more."""
        flow._read_bytes += size
        await flow.drain_writers()
        await self.work(flow)


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    with taddons.context():
        made = Stage()
    turns = Turns()
    for owner in ("owner", "another"):
        turns.note(owner)
    monkeypatch.setattr(module, "TURNS", turns)
    for name in ("replay", "server_event"):
        monkeypatch.setattr(ReplayHandler, name, lambda flow, event=None: made.work(flow, event))
    return made


async def test_flows_start_and_end_in_turn(stage: Stage) -> None:
    """If a client starts or abandons many flows at once, other tasks can run after each of them."""
    assert min(await stage.together(lambda flow: flow.run())) >= STEPS
    assert min(await stage.together(lambda flow: flow.leave())) >= STEPS


async def test_large_reads_take_turns(stage: Stage) -> None:
    """Flows with large reads take turns. Small reads do not wait until they add up to a large one."""
    large, small = LARGE_BYTES + 1, LARGE_BYTES // 2
    assert min(await stage.together(lambda flow: stage.read(flow, large))) >= STEPS
    for _ in range(2):
        assert max(await stage.together(lambda flow: stage.read(flow, small))) == 0
    assert min(await stage.together(lambda flow: stage.read(flow, small))) >= STEPS


async def test_read_data_is_counted(stage: Stage) -> None:
    flow = stage.flows[0]
    await flow.server_event(DataReceived(flow.client, b"x" * 10))
    await flow.server_event(DataReceived(flow.client, b"x" * 5))
    assert flow._read_bytes == 15


async def test_flow_that_was_left_never_starts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a flow is abandoned before its turn to start, its request is not sent."""
    started: list[FlowHandler] = []

    async def start(flow: FlowHandler) -> None:
        started.append(flow)

    monkeypatch.setattr(ReplayHandler, "replay", start)
    running = asyncio.gather(*(flow.run() for flow in stage.flows))
    await asyncio.sleep(0)
    leaving = [asyncio.create_task(flow.leave()) for flow in stage.flows]
    await asyncio.sleep(0)
    for each in leaving:
        each.cancel()
    await asyncio.wait([running, *leaving])
    assert started == stage.flows[:1]


async def test_flow_ends_although_its_turn_never_comes(stage: Stage) -> None:
    """A flow ends even if the task that ends it is canceled while it waits for the flow's turn."""
    leaving = [asyncio.create_task(flow.leave()) for flow in stage.flows]
    await asyncio.sleep(0)
    for each in leaving:
        each.cancel()
    await asyncio.wait(leaving)
    assert len(stage.worked) == FLOWS
