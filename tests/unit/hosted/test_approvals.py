"""An approval is for one call, for one owner, once, and for a while."""

from __future__ import annotations

from toolsimlib.hosted.approvals import MAX_SECONDS, MAX_WAITING, Approvals, owner_of
from toolsimlib.hosted.servers import Server

SERVER = Server("files", ("x",))


def ask(approvals: Approvals, owner: str = "me") -> str:
    return approvals.ask(SERVER, "drop", "files__drop", '{"a":1}', owner)


def test_what_was_asked_is_what_is_approved() -> None:
    """Once: the second time there is nothing."""
    approvals = Approvals()
    name = ask(approvals)
    asked = approvals.take(name, "me")
    assert asked is not None
    assert (asked.server, asked.tool, asked.shown, asked.arguments) == (SERVER, "drop", "files__drop", '{"a":1}')
    assert approvals.take(name, "me") is None


def test_nobody_else_approves() -> None:
    """Neither with another key nor with an id that was made up; the owner still can."""
    approvals = Approvals()
    name = ask(approvals, owner_of("Bearer a", ""))
    assert approvals.take(name, owner_of("Bearer b", "")) is None
    assert approvals.take(name, owner_of("Bearer a")) is None
    assert approvals.take("mcpr_" + "0" * 48, owner_of("Bearer a", "")) is None
    assert approvals.take(name, owner_of("Bearer a", "")) is not None
    assert len({ask(approvals) for _ in range(100)}) == 100


def test_they_do_not_wait_for_ever() -> None:
    """Nor do more wait than there is room for: the oldest are forgotten."""
    now = 0.0
    approvals = Approvals(lambda: now)
    name = ask(approvals)
    now = MAX_SECONDS + 1
    assert approvals.take(name, "me") is None
    first, *_, last = [ask(approvals) for _ in range(MAX_WAITING + 1)]
    assert approvals.take(first, "me") is None
    assert approvals.take(last, "me") is not None
