"""Tests for approvals of MCP calls. An approval is valid for one call by one owner, can be used only once, and
expires.
"""

from __future__ import annotations

import asyncio

import pytest
from toolsim.mcp.approvals import MAX_SECONDS, MAX_WAITING, ApprovalPrompt, Approvals, OperatorApprovals
from toolsim.mcp.servers import Server

SERVER = Server("files", ("x",))


def ask(approvals: Approvals, owner: str = "me") -> str:
    return approvals.ask(SERVER, "drop", "files__drop", '{"a":1}', owner)


def test_approval_returns_the_requested_call_once() -> None:
    """``take`` returns the call for which an approval was requested. An approval can be taken only once."""
    approvals = Approvals()
    name = ask(approvals)
    asked = approvals.take(name, "me")
    assert asked is not None
    assert (asked.server, asked.tool, asked.shown, asked.arguments) == (SERVER, "drop", "files__drop", '{"a":1}')
    assert approvals.take(name, "me") is None


def test_other_owners_cannot_approve() -> None:
    """Another owner cannot approve a call, and an unknown approval ID is rejected. After such attempts, the owner of
    the call can still approve it.
    """
    approvals = Approvals()
    name = ask(approvals, "a")
    assert approvals.take(name, "b") is None
    assert approvals.take(name, "") is None
    assert approvals.take("mcpr_" + "0" * 48, "a") is None
    assert approvals.take(name, "a") is not None
    assert len({ask(approvals) for _ in range(100)}) == 100


def test_pending_approvals_expire() -> None:
    """Pending approvals expire. If their number exceeds the limit, the oldest are dropped."""
    now = 0.0
    approvals = Approvals(lambda: now)
    name = ask(approvals)
    now = MAX_SECONDS + 1
    assert approvals.take(name, "me") is None
    first, *_, last = [ask(approvals) for _ in range(MAX_WAITING + 1)]
    assert approvals.take(first, "me") is None
    assert approvals.take(last, "me") is not None


def test_owner_loses_only_own_approvals() -> None:
    """If an owner has too many pending approvals, only that owner's oldest approvals are dropped."""
    approvals = Approvals()
    name = ask(approvals, "modest")
    names = [ask(approvals, "greedy") for _ in range(MAX_WAITING + 100)]
    assert approvals.take(name, "modest") is not None
    assert approvals.take(names[0], "greedy") is None
    assert approvals.take(names[-1], "greedy") is not None


async def test_operator_decides_waiting_calls() -> None:
    """A decision by the operator applies to all calls of an answer that are waiting for approval. If the operator does
    not decide in time, a call is refused.
    """
    changed: list[str] = []
    desk = OperatorApprovals(changed.append)
    mine, other = ApprovalPrompt("mine", "files", "drop", "{}"), ApprovalPrompt("other", "files", "drop", "{}")
    asked = [asyncio.create_task(desk.ask(each, 30)) for each in (mine, mine, other)]
    await asyncio.sleep(0)
    assert desk.waiting("mine") == [mine, mine]
    assert desk.decide("mine", approve=True) == [mine, mine]
    assert await asyncio.gather(*asked[:2]) == [True, True]
    asked[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked[2]
    assert desk.waiting("other") == desk.waiting("mine") == []
    assert await desk.ask(mine, 0.01) is False
    assert desk.decide("mine", approve=True) == []
    assert changed.count("mine") == 6
