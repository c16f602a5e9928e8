"""Approval and refusal of MCP calls by the operator."""

from __future__ import annotations

import asyncio

from mitmproxy.test import taddons, tflow
from toolsim.mcp.approvals import ApprovalPrompt
from toolsim.proxy.approve import WAITS, Approve


async def test_waiting_flow_can_be_approved() -> None:
    """The comment of a flow that waits for approval names the call. The approval commands accept the client's flow or
    the flow of a round.
    """
    approve = Approve()
    with taddons.context(approve) as context:
        for of_round in (False, True):
            for command, expected in (("toolsim.approve", True), ("toolsim.refuse", False)):
                flow, part = tflow.tflow(), tflow.tflow()
                part.metadata["toolsim"] = {"part_of": flow.id}
                approve.watch(flow)
                asked = asyncio.create_task(approve.desk.ask(ApprovalPrompt(flow.id, "files", "drop", '{"a":1}'), 30))
                await asyncio.sleep(0)
                assert flow.comment == f"{WAITS}files.drop"
                chosen = [part if of_round else flow]
                assert context.master.commands.call("toolsim.waiting", chosen) == [["files", "drop", '{"a":1}']]
                context.master.commands.call(command, [tflow.tflow()])
                assert not asked.done()
                context.master.commands.call(command, chosen)
                assert await asked is expected
                assert flow.comment == ""
                assert context.master.commands.call("toolsim.waiting", chosen) == [["nothing", "", ""]]


async def test_persons_comment_is_kept() -> None:
    """A comment that a person wrote is not overwritten. An MCP call waits for a decision even if its flow has been
    removed.
    """
    approve = Approve()
    flow = tflow.tflow()
    flow.comment = "mine"
    with taddons.context(approve):
        approve.watch(flow)
        for name in (flow.id, "gone"):
            asked = asyncio.create_task(approve.desk.ask(ApprovalPrompt(name, "files", "drop", "{}"), 0.05))
            await asyncio.sleep(0)
            assert flow.comment == "mine"
            assert await asked is False
