"""Calls that wait for a yes.

1. What is approved is what was asked about: tool, arguments and server are kept here, and nothing of what a client
   echoes is believed. An id says nothing by itself, and cannot be guessed.
2. An id is good for one answer, yes or no, for a while, and for the one who was asked: whoever shows another key to the
   proxy or to the backend does not find it.
3. So many wait at a time; the oldest are forgotten, which is a no.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from toolsimlib.hosted.servers import Server

MAX_WAITING = 1_000
MAX_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A call that waits. ``owner``: who was asked, as a digest."""

    server: Server
    tool: str
    shown: str
    arguments: str
    owner: str
    until: float


def owner_of(*credentials: str) -> str:
    """Return a client's name here: nothing that could be used elsewhere."""
    return sha256("\0".join(credentials).encode("utf-8", "surrogatepass")).hexdigest()


class Approvals:
    """The calls that wait, by id."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: OrderedDict[str, Asked] = OrderedDict()

    def ask(self, server: Server, tool: str, shown: str, arguments: str, owner: str) -> str:
        """Keep a call; return the id by which it is approved."""
        name = f"mcpr_{secrets.token_hex(24)}"
        self._asked[name] = Asked(server, tool, shown, arguments, owner, self._clock() + MAX_SECONDS)
        while len(self._asked) > MAX_WAITING:
            self._asked.popitem(last=False)
        return name

    def take(self, name: str, owner: str) -> Asked | None:
        """Return the call that was asked about and forget it, None if there is none of that id for this owner."""
        asked = self._asked.get(name)
        if asked is None or not secrets.compare_digest(asked.owner, owner):
            return None
        del self._asked[name]
        return asked if asked.until > self._clock() else None
