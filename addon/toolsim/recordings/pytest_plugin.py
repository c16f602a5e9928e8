"""A plugin that pytest discovers by itself: recorded exchanges as the backend in a project's own tests.

    def test_my_agent(toolsim_replay):
        served = toolsim_replay("recordings")
        assert "Bonn" in my_agent(base_url=served.base_url)

    def test_what_clients_get(toolsim_replay):
        toolsim_replay("recordings", manifest="calls").assert_same()

A test fails if it sends a request that was not recorded, even if the client handles the error; the message names the
nearest recording and the differences.

pytest loads this module in every project that has toolsim installed, so it imports nothing else of toolsim until a test
needs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import pytest

Value = str | int | bool | Sequence[str]

# The first start creates a certificate authority, on a machine that may be busy.
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0

NOT_RECORDED = "No recorded exchange began with this request"
"""Starts the log line of a request that was not recorded; the rest names the nearest recording."""


class Served:
    """Served recordings. ``base_url``: for clients, with any API key."""

    def __init__(self, files: Sequence[Path], settings: Sequence[str], proxy: Callable[[], _Proxy]) -> None:
        self._files = files
        self._settings = settings
        self._make = proxy
        self._proxy: _Proxy | None = None
        self._start = 0

    @property
    def base_url(self) -> str:
        """The base URL of the recorded answers; the first access starts the proxy."""
        if self._proxy is None:
            self._proxy = self._make()
            self._start = len(self._proxy.log())
        return f"http://127.0.0.1:{self._proxy.port}/v1"

    @property
    def unmatched(self) -> list[str]:
        """The requests of this test that were not recorded: for each, the nearest recording and the differences."""
        if self._proxy is None:
            return []
        lines = self._proxy.log()[self._start :].splitlines()
        messages = [json.loads(line).get("message", "") for line in lines if line.startswith("{")]
        return [message for message in messages if NOT_RECORDED in message]

    def assert_same(self) -> None:
        """Replay all recordings, and fail unless clients get the same as when they were recorded."""
        command = [sys.executable, "-m", "toolsim.recordings.replay", *map(str, self._files)]
        command += [word for setting in self._settings for word in ("--set", setting)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            different = [line for line in run.stdout.splitlines() if not line.endswith(": same")]
            pytest.fail("\n".join([*different, run.stderr]).strip(), pytrace=False)


class _Proxy:
    """A mitmdump that serves recordings."""

    def __init__(self, files: Sequence[Path], settings: Sequence[str], folder: Path) -> None:
        from toolsim.recordings import child

        folder.mkdir()
        self._log = folder / "log"
        served = [word for file in files for word in ("-S", str(file))]
        settings = [f"confdir={folder.parent / 'confdir'}", "toolsim_log=json", *settings]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                child.command(served, settings),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
            )
        end = time.monotonic() + _START_SECONDS
        while True:
            is_over = self._process.poll() is not None or time.monotonic() > end
            try:
                port = child.port(self.log())
            except ValueError as problem:
                self.stop()
                pytest.fail(str(problem), pytrace=False)
            if port is not None:
                self.port = port
                return
            if is_over:
                self.stop()
                pytest.fail(f"mitmdump did not start:\n{child.tail(self.log())}", pytrace=False)
            time.sleep(0.05)

    def log(self) -> str:
        """Return all that it has logged."""
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        """Stop the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_SERVED = pytest.StashKey[list[Served]]()
_Start = Callable[[Sequence[Path], Sequence[str]], _Proxy]


@pytest.fixture(scope="session")
def _toolsim_proxies() -> Iterator[_Start]:
    """Proxies for the whole session, one per set of files and options."""
    started: dict[tuple[tuple[Path, ...], tuple[str, ...]], _Proxy] = {}
    with tempfile.TemporaryDirectory(prefix="toolsim-replay-") as folder:

        def start(files: Sequence[Path], settings: Sequence[str]) -> _Proxy:
            key = tuple(files), tuple(settings)
            if key not in started:
                started[key] = _Proxy(files, settings, Path(folder) / f"proxy-{len(started)}")
            return started[key]

        try:
            yield start
        finally:
            for proxy in started.values():
                proxy.stop()


@pytest.fixture
def toolsim_replay(request: pytest.FixtureRequest, _toolsim_proxies: _Start) -> Callable[..., Served]:
    """Serve the recorded exchanges of a folder: ``toolsim_replay("recordings", manifest="calls").base_url``.

    The folder is one beside the test's file, or any other by its full path; a single file will do. Options are
    toolsim's, without the prefix; they count before those under which the exchanges were recorded.
    """
    served = request.node.stash.setdefault(_SERVED, [])

    def serve(folder: str | Path, **options: Value) -> Served:
        path = request.path.parent / folder
        files = sorted(path.glob("*.flow")) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            pytest.fail(f"toolsim_replay: no .flow file at {path}", pytrace=False)
        settings = [f"toolsim_{name}={text}" for name, value in options.items() for text in _texts(value)]
        # Each recording answers any number of times, so that no test depends on which ones ran before.
        reusing = [*settings, "server_replay_reuse=true"]
        recordings = Served(files, settings, lambda: _toolsim_proxies(files, reusing))
        served.append(recordings)
        return recordings

    return serve


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that sent unrecorded requests; if it has failed anyway, add them to its report."""
    try:
        yield
    except BaseException:
        if unmatched := _unmatched(item):
            item.add_report_section("call", "toolsim_replay", unmatched)
        raise
    if unmatched := _unmatched(item):
        pytest.fail(unmatched, pytrace=False)


def _unmatched(item: pytest.Item) -> str:
    return "\n".join(message for served in item.stash.get(_SERVED, []) for message in served.unmatched)


def _texts(value: Value) -> list[str]:
    if isinstance(value, bool):
        return [str(value).lower()]
    return [str(value)] if isinstance(value, str | int) else list(value)
