"""The owner of the child, with children that we play; the real one is in tests/codex."""

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from toolsimlib.backends import appserver
from toolsimlib.backends.appserver import AppServer, Refusal, Unavailable

GREETS = """
import json, os, sys, time
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message: continue
    method = message["method"]
    if method == "die": os._exit(7)
    if method == "shut": os.close(1); time.sleep(60)
    if method == "hang": continue
    print(json.dumps({"id": message["id"], "result": {"method": method, "pid": os.getpid()}}), flush=True)
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + GREETS + "time.sleep(60)\n"
# As npm's: a parent that only waits for the child that holds the pipes.
WRAPPED = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {GREETS!r}]))"


@pytest.fixture
async def servers() -> AsyncIterator[list[AppServer]]:
    started: list[AppServer] = []
    yield started
    for server in started:
        await server.stop()


async def serve(servers: list[AppServer], script: str) -> AppServer:
    server = AppServer((sys.executable, "-c", script))
    servers.append(server)
    await server.start()
    return server


@pytest.mark.parametrize("method", ["die", "shut"])
async def test_a_death_fails_what_waits_and_is_followed_by_a_new_child(servers: list[AppServer], method: str) -> None:
    """Requests and threads alike; the next connection is another one."""
    server = await serve(servers, GREETS)
    connection = await server.connection()
    queue = connection.listen("t")
    waiting = asyncio.create_task(connection.request("hang", {}))
    with pytest.raises(Unavailable) as caught:
        await connection.request(method, {})
    assert (caught.value.error.status, caught.value.error.code) == (502, "backend_died")
    with pytest.raises(Unavailable):
        await waiting
    assert await queue.get() is None
    with pytest.raises(Unavailable):
        await connection.request("late", {})
    assert await connection.listen("late").get() is None
    again = await server.connection()
    assert again is not connection
    assert (await again.request("hello", {}))["method"] == "hello"


async def test_a_killed_wrapper_is_a_death(servers: list[AppServer]) -> None:
    """Though its own child lives on and holds the pipes; that one ends too."""
    server = await serve(servers, WRAPPED)
    connection = await server.connection()
    inner = int((await connection.request("hello", {}))["pid"])
    wrapper = connection._transport.get_pid()
    assert inner != wrapper
    connection._transport.kill()
    with pytest.raises(Unavailable) as caught:
        await connection.request("hang", {})
    assert "signal 9" in caught.value.error.message
    for _ in range(100):
        if not Path(f"/proc/{inner}").exists():
            break
        await asyncio.sleep(0.02)
    assert not Path(f"/proc/{inner}").exists()


async def test_stopping_ends_a_child_that_will_not_end(
    servers: list[AppServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at the end of its input nor by SIGTERM."""
    monkeypatch.setattr(appserver, "_STOP_LIMIT", 0.2)
    server = await serve(servers, STUBBORN)
    connection = await server.connection()
    pid = connection._transport.get_pid()
    began = time.monotonic()
    await server.stop()
    assert time.monotonic() - began < 2
    assert connection._transport.get_returncode() is not None
    assert connection.death is not None
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(Unavailable) as caught:
        await server.connection()
    assert caught.value.error.status == 503


async def test_starts_that_fail_are_tried_again_ever_more_slowly(
    servers: list[AppServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once; and once the cause is gone, it serves."""
    count = tmp_path / "count"
    script = (
        f"import sys, time; open({str(count)!r}, 'a').write(f'{{time.time()}}\\n')\n"
        f"if not __import__('os').path.exists({str(tmp_path / 'go')!r}): sys.exit('no good')\n{GREETS}"
    )
    server = await serve(servers, script)
    with pytest.raises(Unavailable) as caught:
        await server.connection()
    assert caught.value.error.status == 503
    assert "no good" in caught.value.error.message
    await asyncio.sleep(2.5)
    times = [float(line) for line in count.read_text().split()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(gaps) >= 2
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(gaps))
    (tmp_path / "go").touch()
    async with asyncio.timeout(10):
        while True:
            try:
                connection = await server.connection()
                break
            except Unavailable:
                await asyncio.sleep(0.1)
    assert (await connection.request("hello", {}))["method"] == "hello"
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


async def test_a_child_that_never_answers_is_a_failed_start(
    servers: list[AppServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a hang."""
    monkeypatch.setattr(appserver, "_START_LIMIT", 0.3)
    monkeypatch.setattr(appserver, "_STOP_LIMIT", 0.2)
    server = await serve(servers, "import time; time.sleep(60)")
    with pytest.raises(Unavailable) as caught:
        await server.connection()
    assert "did not answer" in caught.value.error.message


async def test_an_older_server_is_told_to_be_updated(servers: list[AppServer]) -> None:
    """One that does not know account/read."""
    script = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    greeted = {"result": {"userAgent": "x/0.20.1"}}
    unknown = {"error": {"code": -32600, "message": "unknown variant"}}
    if "id" in message:
        answer = greeted if message["method"] == "initialize" else unknown
        print(json.dumps({"id": message["id"], **answer}), flush=True)
"""
    server = await serve(servers, script)
    with pytest.raises(Unavailable) as caught:
        await server.connection()
    assert "0.20.1" in caught.value.error.message
    assert "update" in caught.value.error.message


def test_an_unknown_method_is_told_from_other_refusals() -> None:
    """Codex answers with the list of all that it knows."""
    assert Refusal("a/b", "Invalid request: unknown variant `a/b`, expected one of `a/c`").unknown_method
    assert not Refusal("a/b", "Invalid request: unknown variant `input_file`, expected `input_text`").unknown_method
    assert not Refusal("a/b", "Invalid request: missing field `threadId`").unknown_method
