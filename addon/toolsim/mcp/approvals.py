"""Manages calls that wait for approval.

1. The call that runs is the call that was shown to the user. Its tool, arguments and server are stored here, and the
   client's copy is not trusted. The ID of a call contains no information and cannot be guessed.
2. An ID is valid for one decision, for a limited time, and only for the client that received it. A client with another
   key for the proxy or the backend cannot use it.
3. The number of waiting calls is limited. Beyond the limit, the client with the most calls loses its oldest calls, as
   if they had been refused. Thus no client can displace another client's calls.
4. If the operator decides instead of the client (``OperatorApprovals``), the answer waits for the decision for a
   limited time. If the time runs out or the client disconnects, the call is refused.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from toolsim.core.fair_cache import FairCache
from toolsim.mcp.servers import Server

MAX_WAITING = 1_000
MAX_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """A call that waits for approval. ``owner`` identifies the client."""

    server: Server
    tool: str
    shown: str
    arguments: str
    owner: str
    until: float


class Approvals:
    """The calls that wait for a client's approval, by ID."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: FairCache[PendingApproval] = FairCache(MAX_WAITING, MAX_WAITING)

    def ask(self, server: Server, tool: str, shown: str, arguments: str, owner: str) -> str:
        """Store a call, and return the ID that the client needs to approve the call."""
        name = f"mcpr_{secrets.token_hex(24)}"
        asked = PendingApproval(server, tool, shown, arguments, owner, self._clock() + MAX_SECONDS)
        self._asked.put(name.encode(), asked, owner)
        return name

    def take(self, name: str, owner: str) -> PendingApproval | None:
        """Remove and return the call with this ID. Return None if it has expired or does not belong to this owner."""
        key = name.encode("utf-8", "surrogatepass")
        asked = self._asked.get(key)
        if asked is None or not secrets.compare_digest(asked.owner, owner):
            return None
        self._asked.pop(key)
        return asked if asked.until > self._clock() else None


@dataclass(frozen=True, slots=True)
class ApprovalPrompt:
    """A call that the operator has to approve or refuse.

    ``answer`` is the ID of the flow whose answer waits for the decision.
    """

    answer: str
    label: str
    tool: str
    arguments: str


class OperatorApprovals:
    """The calls that wait for the operator's decision.

    ``changed`` is called with the ID of an answer whenever the answer's prompts change.
    """

    def __init__(self, changed: Callable[[str], None] = lambda answer: None) -> None:
        self._changed = changed
        self._waiting: dict[asyncio.Future[bool], ApprovalPrompt] = {}

    async def ask(self, question: ApprovalPrompt, seconds: float) -> bool:
        """Wait for the operator's decision, and return whether the call is approved. After a timeout, return False."""
        decision: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[decision] = question
        self._changed(question.answer)
        try:
            with suppress(TimeoutError):
                return await asyncio.wait_for(decision, seconds)
            return False
        finally:
            del self._waiting[decision]
            self._changed(question.answer)

    def waiting(self, answer: str) -> list[ApprovalPrompt]:
        """Return an answer's prompts that are still undecided."""
        return [question for question in self._waiting.values() if question.answer == answer]

    def decide(self, answer: str, *, approve: bool) -> list[ApprovalPrompt]:
        """Approve or refuse all of an answer's waiting calls, and return their prompts."""
        decided = [(decision, question) for decision, question in self._waiting.items() if question.answer == answer]
        for decision, _ in decided:
            if not decision.done():
                decision.set_result(approve)
        return [question for _, question in decided]
