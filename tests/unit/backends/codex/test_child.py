"""Tests for Codex's app-server as a child process: its requests, its unexpected death, and its termination."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from toolsim.backends.codex import child as child_module
from toolsim.backends.codex.errors import CodexUnavailable
from toolsim.backends.codex.server import AppServer

# Each test starts a real process.
pytestmark = pytest.mark.slow

Serve = Callable[..., Awaitable[AppServer]]


@pytest.mark.parametrize("method", ["die", "shut"])
async def test_dead_child_fails_pending_requests_and_is_restarted(serve: Serve, echo: str, method: str) -> None:
    """If the app-server process dies, pending requests fail, subscriptions to its threads end, and the next request
    starts a new process.
    """
    server = await serve(echo)
    child = await server.child()
    queue = child.subscribe("t")
    waiting = asyncio.create_task(child.request("hang", {}))
    with pytest.raises(CodexUnavailable) as caught:
        await child.request(method, {})
    assert (caught.value.error.status, caught.value.error.code) == (502, "backend_died")
    with pytest.raises(CodexUnavailable):
        await waiting
    assert await queue.get() is None
    with pytest.raises(CodexUnavailable):
        await child.request("late", {})
    assert await child.subscribe("late").get() is None
    again = await server.child()
    assert again is not child
    assert (await again.request("hello", {}))["method"] == "hello"


async def test_killed_wrapper_counts_as_dead_child(serve: Serve, echo: str) -> None:
    """If the app-server runs inside a wrapper, and the wrapper is killed, the child counts as dead. The app-server
    itself, which still holds the pipes, is killed as well.
    """
    # Like npm's wrapper, this program only waits for the inner process, which holds the pipes.
    program = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {echo!r}]))"
    server = await serve(program)
    child = await server.child()
    inner = int((await child.request("hello", {}))["pid"])
    wrapper = child.pid
    assert inner != wrapper
    child._transport.kill()
    with pytest.raises(CodexUnavailable) as caught:
        await child.request("hang", {})
    assert "signal 9" in caught.value.error.message
    for _ in range(100):
        if not Path(f"/proc/{inner}").exists():
            break
        await asyncio.sleep(0.02)
    assert not Path(f"/proc/{inner}").exists()


async def test_stop_kills_child_that_ignores_sigterm(serve: Serve, echo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping the server kills a child process that ignores SIGTERM and the end of its standard input."""
    monkeypatch.setattr(child_module, "_STOP_TIMEOUT", 0.2)
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    server = await serve(f"{ignores}{echo}time.sleep(60)\n")
    child = await server.child()
    pid = child.pid
    began = time.monotonic()
    await server.stop()
    assert time.monotonic() - began < 30
    assert child._transport.get_returncode() is not None
    assert child.death is not None
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(CodexUnavailable) as caught:
        await server.child()
    assert caught.value.error.status == 503


async def test_earlier_log_lines_are_not_the_exit_reason(serve: Serve, echo: str) -> None:
    """Codex logs harmless warnings at startup. If Codex is killed later, the error does not name one of these warnings
    as the reason.
    """
    complains = "import sys; print('Could not find bubblewrap', file=sys.stderr, flush=True)\n"
    server = await serve(complains + echo)
    child = await server.child()
    child._transport.kill()
    with pytest.raises(CodexUnavailable) as caught:
        await child.request("hang", {})
    assert caught.value.error.message.endswith("was killed by signal 9")
