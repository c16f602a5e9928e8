"""Attacks on a real mitmdump. Each test checks the answer, the time, the memory, and the delay of a neighbor client."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any

import pytest
from attack.cases import ATTACKS, BACKENDS, Attack, ask, request
from attack.results import ROWS
from support.effort import parameters
from support.line import Line
from support.mitmdump import Mitmdump
from support.ports import free_port
from support.raw_backend import RawBackend

pytestmark = [pytest.mark.slow, pytest.mark.ci]

# Maximum delay in seconds above the neighbor's baseline; the goal on an idle machine is 0.05. On a busy machine, other
# load can delay a client once, but an attack that blocks the proxy delays clients in every attempt.
MAX_DELAY = float(os.environ.get("ATTACK_DELAY", "0.25"))
TRIES = 3


def slowness() -> float:
    """Return the factor by which other load slows this machine down, estimated from the load average per core."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


# Attacks that take more than ten seconds each.
LONG = {
    "large: 10,000 calls at once",
    "large: 10,000 calls in a stream",
    "large: 100,000 messages",
    "large: 15 MB of empty lists",
    "large: 15 MB of empty lists, as they are",
}


@pytest.mark.parametrize(
    "attack",
    parameters(ATTACKS, lambda attack: attack.name in LONG),
    ids=lambda attack: attack.name,
)
def test_attack(attack: Attack, worlds: Any) -> None:
    """The proxy answers each attack as expected, within its time and memory limits. Other clients are not delayed."""
    world = worlds(attack.world)
    data = attack.sends(world.ports)
    delays: list[float] = []
    while not delays or (min(delays) >= MAX_DELAY * slowness() and len(delays) < TRIES):
        world.backend.play(BACKENDS[attack.backend])
        before = world.memory()
        with world.neighbour as neighbour:
            # The proxy's worker processes have a low priority, so other load slows them down more than proportionally.
            patience = attack.seconds * slowness() ** 2
            start = time.monotonic()
            reply = world.send(data, patience)
            seconds = time.monotonic() - start
        delays.append(max(neighbour.worst - neighbour.baseline, 0.0))
        memory = world.memory() - before
        ROWS.append((attack.name, reply[9:12].decode("latin-1"), seconds, memory, delays[-1]))
        assert re.match(attack.expected, reply.decode("latin-1"), re.DOTALL), reply[:2000]
        assert len(world.backend.asked) <= attack.reaches
        assert seconds < patience
        assert memory < attack.mebibytes
    assert min(delays) < MAX_DELAY * slowness()


def test_correct_key_is_accepted(worlds: Any) -> None:
    """A request with the correct key is served, and the key is not forwarded to the backend."""
    world = worlds("locked")
    world.backend.play(BACKENDS["fine"])
    reply = world.send(request("/v1/files", b"{}", Authorization="Bearer s3cret-key"), 10)
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert world.backend.asked[-1].header("authorization") is None


def test_restarted_backend_serves_open_connections() -> None:
    """A client that keeps its connection to the proxy open, as SDKs do, is served again once the backend is back."""
    with RawBackend() as reserved:
        port = reserved.port
    with Mitmdump(f"http://127.0.0.1:{port}") as proxy, Line(proxy.url) as line:
        for _ in range(2):
            assert line.post("/v1/chat/completions", ask()).status == 502
        with RawBackend(port) as backend:
            backend.play(BACKENDS["fine"])
            assert line.post("/v1/chat/completions", ask(stream=True)).status == 200


@pytest.mark.parametrize(
    ("host", "status", "code"),
    [
        # mitmproxy itself recognizes these two names as its own address.
        ("127.0.0.1", 502, "backend_unavailable"),
        ("localhost", 502, "backend_unavailable"),
        ("127.1", 508, "loop_detected"),
        ("0.0.0.0", 508, "loop_detected"),
    ],
)
def test_proxy_as_its_own_upstream_is_a_loop(host: str, status: int, code: str) -> None:
    """If a proxy is its own upstream, every request fails, at the latest when it reaches the proxy a second time."""
    port = free_port()
    arguments = ("--listen-port", str(port))
    # mitmproxy logs connections only with toolsim_log=off. Engine detection is disabled, because it would open more
    # connections.
    options = {"toolsim_upstream": f"http://{host}:{port}", "toolsim_log": "off", "toolsim_engine": "unknown"}
    with Mitmdump(arguments=arguments, **options) as proxy, Line(proxy.url) as line:  # type: ignore[arg-type]
        for _ in range(3):
            reply = line.post("/v1/chat/completions", ask())
            assert (reply.status, reply.json()["error"]["code"]) == (status, code)
        assert 0 < proxy.log().count("client connect") <= 4


def test_loop_of_two_proxies_fails_with_508() -> None:
    """If two proxies have each other as upstream, each request passes through each proxy only once and then fails with
    508.
    """
    ports = (free_port(), free_port())
    with contextlib.ExitStack() as stack:
        proxies = [
            stack.enter_context(
                Mitmdump(f"http://127.0.0.1:{there}", arguments=("--listen-port", str(here)), toolsim_log="off")
            )
            for here, there in (ports, ports[::-1])
        ]
        for proxy in proxies:
            with Line(proxy.url) as line:
                for reply in (line.post("/v1/chat/completions", ask()), line.request("GET", "/v1/models")):
                    assert (reply.status, reply.json()["error"]["code"]) == (508, "loop_detected")
        for proxy in proxies:
            assert 0 < proxy.log().count("client connect") < 40
