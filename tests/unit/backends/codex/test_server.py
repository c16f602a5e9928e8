"""The owner of the child, with children that we play; the real one is in tests/codex."""

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from toolsimlib.backends.codex import server as module
from toolsimlib.backends.codex.server import AppServer, Refusal, Unavailable

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
    monkeypatch.setattr(module, "_STOP_LIMIT", 0.2)
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


@pytest.mark.slow
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


async def test_a_start_that_fails_at_once_is_said_at_once(
    servers: list[AppServer], caplog: pytest.LogCaptureFixture
) -> None:
    """Also where tasks begin as soon as they are made, as they do in mitmproxy."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    server = AppServer(("/no/such/codex", "app-server"))
    servers.append(server)
    await server.start()
    with pytest.raises(Unavailable):
        await server.connection()
    assert ["install Codex" in record.getMessage() for record in caplog.records] == [True]


def codex(folder: Path, models: str) -> Path:
    """Return a command that greets as ``app-server``, and runs the shell's ``models`` as ``debug models``."""
    command = folder / "codex"
    command.write_text(f"#!/bin/sh\n[ $1 = debug ] && {{ {models}; exit; }}\nexec {sys.executable} -c '{GREETS}'\n")
    command.chmod(0o755)
    return command


async def test_a_catalogue_that_never_comes_is_done_without(
    servers: list[AppServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though what a wrapper has started holds the pipe; nothing of it is left, and the operator learns of it."""
    monkeypatch.setattr(module, "_CATALOG_LIMIT", 0.5)
    noted = tmp_path / "pid"
    server = AppServer((str(codex(tmp_path, f"sleep 60 & echo $! >{noted}; wait")), "app-server"))
    servers.append(server)
    began = time.monotonic()
    await server.start()
    await server.connection()
    assert time.monotonic() - began < 5
    stat = Path(f"/proc/{noted.read_text().strip()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
    assert len([record for record in caplog.records if "catalogue" in record.getMessage()]) == 1


async def test_stopping_does_not_wait_for_the_catalogue(servers: list[AppServer], tmp_path: Path) -> None:
    """It is ended like the child."""
    noted = tmp_path / "pid"
    server = AppServer((str(codex(tmp_path, f"sleep 60 & echo $! >{noted}; wait")), "app-server"))
    await server.start()
    while not noted.exists():
        await asyncio.sleep(0.01)
    began = time.monotonic()
    await server.stop()
    assert time.monotonic() - began < 2


async def test_starts_that_fail_say_nothing_of_the_catalogue(
    servers: list[AppServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says why, however often it is tried."""
    command = tmp_path / "codex"
    command.write_text("#!/bin/sh\nexit 3\n")
    command.chmod(0o755)
    server = AppServer((str(command), "app-server"))
    servers.append(server)
    await server.start()
    await asyncio.sleep(1)
    assert len(caplog.records) == 1


async def test_what_a_killed_child_once_complained_of_is_not_its_cause(servers: list[AppServer]) -> None:
    """Codex begins with complaints of no consequence."""
    script = "import sys; print('Could not find bubblewrap', file=sys.stderr, flush=True)\n" + GREETS
    server = await serve(servers, script)
    connection = await server.connection()
    connection._transport.kill()
    with pytest.raises(Unavailable) as caught:
        await connection.request("hang", {})
    assert caught.value.error.message.endswith("was killed by signal 9")


async def test_folders_of_the_killed_are_removed_by_the_next(
    servers: list[AppServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never those of the living."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = await serve(servers, GREETS)
    kept = (await first.connection()).folder.parent
    left = tmp_path / f"{kept.name}-left"
    (left / "empty").mkdir(parents=True)
    second = await serve(servers, GREETS)
    own = (await second.connection()).folder.parent
    assert sorted(tmp_path.iterdir()) == sorted([kept, own])


async def test_a_child_that_never_answers_is_a_failed_start(
    servers: list[AppServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a hang."""
    monkeypatch.setattr(module, "_START_LIMIT", 0.3)
    monkeypatch.setattr(module, "_STOP_LIMIT", 0.2)
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
