"""Tests for the supervision of the app-server: startup, failed starts, back-off and handshakes."""

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from toolsim.backends.codex import child as child_module
from toolsim.backends.codex import server as server_module
from toolsim.backends.codex.errors import CodexUnavailable
from toolsim.backends.codex.server import AppServer

# Each test starts a real process.
pytestmark = pytest.mark.slow

Serve = Callable[..., Awaitable[AppServer]]


@pytest.mark.slow
async def test_failed_starts_are_retried_at_growing_intervals(
    serve: Serve, echo: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the app-server fails to start, it is started again at growing intervals. The reason is logged only once."""
    count = tmp_path / "count"
    script = (
        f"import sys, time; open({str(count)!r}, 'a').write(f'{{time.monotonic()}}\\n')\n"
        f"if not __import__('os').path.exists({str(tmp_path / 'go')!r}): sys.exit('no good')\n{echo}"
    )
    server = await serve(script)
    with pytest.raises(CodexUnavailable) as caught:
        await server.child()
    assert caught.value.error.status == 503
    assert "no good" in caught.value.error.message
    async with asyncio.timeout(60):
        while len(times := [float(line) for line in count.read_text().split()]) < 3:
            await asyncio.sleep(0.05)
    # Only the lower bounds of the intervals can be checked, because starting a process can take a long time on a
    # busy machine.
    delays = [server_module._MIN_DELAY * 2**number for number in range(2)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(gap > 0.99 * delay for gap, delay in zip(gaps, delays, strict=False)), gaps
    (tmp_path / "go").touch()
    async with asyncio.timeout(60):
        while True:
            try:
                child = await server.child()
                break
            except CodexUnavailable:
                await asyncio.sleep(0.1)
    assert (await child.request("hello", {}))["method"] == "hello"
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


async def test_immediate_start_failure_is_logged_immediately(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """If the app-server's command cannot be executed, the error is logged immediately, even if the event loop starts
    tasks eagerly, as in mitmproxy.
    """
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    server = await serve(command=("/no/such/codex", "app-server"))
    with pytest.raises(CodexUnavailable):
        await server.child()
    assert ["install Codex" in record.getMessage() for record in caplog.records] == [True]


@pytest.fixture
def hanging(tmp_path: Path, echo: str) -> tuple[str, Path]:
    """Return a command that hangs instead of printing the model catalog, and the file to which the command writes the
    ID of its child process.
    """
    command, noted = tmp_path / "codex", tmp_path / "pid"
    hang = f"sleep 60 & echo $! >{noted}; wait; exit"
    command.write_text(f"#!/bin/sh\n[ $1 = debug ] && {{ {hang}; }}\nexec {sys.executable} -c '{echo}'\n")
    command.chmod(0o755)
    return str(command), noted


async def test_server_starts_without_a_catalog_that_hangs(
    serve: Serve, hanging: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the catalog command hangs, the server starts without a catalog, and no process is left running."""
    monkeypatch.setattr(server_module, "_CATALOG_TIMEOUT", 0.5)
    command, noted = hanging
    began = time.monotonic()
    server = await serve(command=(command, "app-server"))
    await server.child()
    assert time.monotonic() - began < 30
    stat = Path(f"/proc/{noted.read_text().strip()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
    assert len([record for record in caplog.records if "catalog" in record.getMessage()]) == 1


async def test_stopping_does_not_wait_for_the_catalog(serve: Serve, hanging: tuple[str, Path]) -> None:
    """The server can be stopped immediately, even while a process is still printing the model catalog."""
    command, noted = hanging
    server = await serve(command=(command, "app-server"))
    while not noted.exists():
        await asyncio.sleep(0.01)
    began = time.monotonic()
    await server.stop()
    assert time.monotonic() - began < 30


async def test_failed_starts_do_not_mention_the_catalog(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If every start of the app-server fails, the log has one line with the reason and does not mention the catalog."""
    command = tmp_path / "codex"
    command.write_text("#!/bin/sh\nexit 3\n")
    command.chmod(0o755)
    await serve(command=(str(command), "app-server"))
    await asyncio.sleep(1)
    assert len(caplog.records) == 1


async def test_child_that_never_answers_is_a_failed_start(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a new child process does not answer within the startup timeout, requests fail, and the error states the
    reason.
    """
    monkeypatch.setattr(server_module, "_START_TIMEOUT", 0.3)
    monkeypatch.setattr(child_module, "_STOP_TIMEOUT", 0.2)
    server = await serve("import time; time.sleep(60)")
    with pytest.raises(CodexUnavailable) as caught:
        await server.child()
    assert "did not answer" in caught.value.error.message


OF_VERSION = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message: continue
    answer = {"result": {"userAgent": "x/VERSION (Debian)"}}
    if message["method"] == "MISSING":
        answer = {"error": {"code": -32600, "message": "Invalid request: unknown variant `MISSING`, expected"}}
    print(json.dumps({"id": message["id"], **answer}), flush=True)
"""


@pytest.mark.parametrize(("version", "missing"), [("0.132.9", ""), ("0.20.1", ""), ("0.169.0", "account/read")])
async def test_unusable_version_is_refused_with_advice_to_update(serve: Serve, version: str, missing: str) -> None:
    """If Codex is too old or lacks a required method, requests fail with an error that states Codex's version and
    advises the user to update it.
    """
    server = await serve(OF_VERSION.replace("VERSION", version).replace("MISSING", missing))
    with pytest.raises(CodexUnavailable) as caught:
        await server.child()
    assert version in caught.value.error.message
    advice = "; update it (npm install" if missing else ". Update it (npm install"
    assert advice in caught.value.error.message


@pytest.mark.parametrize("version", ["0.133.0", "0.169.0", "1.0.0-alpha.1", "0.0.0", "dev"])
async def test_other_versions_are_accepted(serve: Serve, version: str) -> None:
    """Later versions of Codex are accepted, as are private builds without a usable version number."""
    server = await serve(OF_VERSION.replace("VERSION", version))
    assert (await server.child()).version in (version, "")


async def test_temporary_folder_is_removed_with_the_child(serve: Serve, echo: str) -> None:
    server = await serve(echo)
    folder = (await server.child()).workdir.parent
    assert folder.is_dir()
    await server.stop()
    assert not folder.exists()
