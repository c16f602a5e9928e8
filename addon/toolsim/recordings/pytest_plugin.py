"""A pytest plugin, which pytest finds automatically, with a scripted model and recorded exchanges as backends for
tests.

    def test_with_a_script(toolsim_model):
        toolsim_model.call("get_weather", city="Bonn")
        toolsim_model.answer("It is 18 degrees.")
        assert "18" in my_agent(base_url=toolsim_model.base_url)

    def test_my_agent(toolsim_replay):
        served = toolsim_replay("recordings")
        assert "Bonn" in my_agent(base_url=served.base_url)

    def test_what_clients_get(toolsim_replay):
        toolsim_replay("recordings", manifest="calls").assert_same()

A test fails if a request was not recorded or the script has no answer to it, even if the client handles the error. For
recordings, the message names the closest recording and the differences.

pytest loads this module in every project that has toolsim installed, so it does not import the rest of toolsim until a
test needs it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from toolsim.recordings.child import Child
    from toolsim.recordings.scripted_model import ModelServer, ScriptedModel

Value = str | int | bool | Sequence[str]

NOT_RECORDED = "No recorded exchange began with this request"
"""The first words of the log message about a request that was not recorded.

The rest of the message names the closest recording.
"""
NOTE, NORMALISE = "toolsim_capture", "normalise"
"""Metadata keys in a recording. ``server_replay`` reads the patterns for ignored text from
``metadata[NOTE][NORMALISE]``.
"""

NORMALISERS: Mapping[str, str] = {
    "dates": r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?",
    "times": r"\b\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?\b",
    "ids": r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\b[a-z]{2,10}[_-][0-9A-Za-z]{16,}|\b[0-9a-f]{16,}\b",
}
"""Patterns for text that differs between test runs, by the name that a test can specify."""


class _Backend(Protocol):
    @property
    def unmatched(self) -> list[str]:
        """Messages about the requests in this test that were not answered, each with the reason."""


class ReplayServer:
    """Recordings that a proxy serves. Clients use its ``base_url``, with any API key."""

    def __init__(self, files: Sequence[Path], settings: Sequence[str], proxy: Callable[[], Child]) -> None:
        self._files = files
        self._settings = settings
        self._make = proxy
        self._proxy: Child | None = None
        self._start = 0

    @property
    def base_url(self) -> str:
        """The base URL at which the recorded answers are served. The first access starts the proxy."""
        if self._proxy is None:
            self._proxy = self._make()
            self._start = len(self._proxy.log())
        return f"http://127.0.0.1:{self._proxy.port}/v1"

    @property
    def unmatched(self) -> list[str]:
        """Messages about the requests in this test that were not recorded. Each names the closest recording."""
        if self._proxy is None:
            return []
        lines = self._proxy.log()[self._start :].splitlines()
        messages = [json.loads(line).get("message", "") for line in lines if line.startswith("{")]
        return [message for message in messages if NOT_RECORDED in message]

    def assert_same(self) -> None:
        """Replay all recordings, and fail the test if clients would now receive different answers."""
        command = [sys.executable, "-m", "toolsim.recordings.replay", *map(str, self._files)]
        command += [word for setting in self._settings for word in ("--set", setting)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            different = [line for line in run.stdout.splitlines() if not line.endswith(": same")]
            pytest.fail("\n".join([*different, run.stderr]).strip(), pytrace=False)


class Recorder:
    """A proxy that records a test's exchanges with a real backend. Clients use its ``base_url``."""

    unmatched: Sequence[str] = ()

    def __init__(self, folder: Path, proxy: Callable[[], Child], captured: Path) -> None:
        self._folder = folder
        self._make = proxy
        self._captured = captured
        self._proxy: Child | None = None

    @property
    def base_url(self) -> str:
        """The base URL of the proxy in front of the real backend. The first access starts the proxy."""
        if self._proxy is None:
            self._proxy = self._make()
        return f"http://127.0.0.1:{self._proxy.port}/v1"

    def assert_same(self) -> None:
        """Do nothing, because a test that is being recorded has no recordings to compare with."""

    def finish(self, *, keep: bool) -> None:
        """Stop the proxy.

        If ``keep`` is true and there are new recordings, they replace those in the folder.
        """
        if self._proxy is None:
            return
        self._proxy.stop()
        new = sorted(self._captured.glob("*.flow")) if keep else []
        if not new:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for file in new:
            # The file is copied to the destination folder before it is renamed, because the temporary folder may be on
            # a different file system.
            part = self._folder / f".{file.name}.part"
            part.write_bytes(file.read_bytes())
            part.replace(self._folder / file.name)
        for old in set(self._folder.glob("*.flow")) - {self._folder / file.name for file in new}:
            old.unlink()


_BACKENDS = pytest.StashKey[list[_Backend]]()
_HAS_PASSED = pytest.StashKey[bool]()
_Start = Callable[[Sequence[str], Sequence[str]], "Child"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that controls recording."""
    parser.getgroup("toolsim").addoption(
        "--toolsim-record",
        choices=("once", "none", "all"),
        default="none",
        help="mode of toolsim_replay(record_from=URL): once records missing exchanges, all records everything again, "
        "none (the default) only replays",
    )


@pytest.fixture(scope="session")
def _toolsim_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="toolsim-pytest-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def _toolsim_proxies(_toolsim_folder: Path) -> Iterator[_Start]:
    """Yield a function that starts proxies, which run until the end of the test session.

    Calls with the same arguments and options return the same proxy.
    """
    started: dict[tuple[tuple[str, ...], tuple[str, ...]], Child] = {}
    numbers = count()  # Counts failed starts, too, because each start needs a new folder.

    def start(words: Sequence[str], settings: Sequence[str]) -> Child:
        key = tuple(words), tuple(settings)
        if key not in started:
            started[key] = _start(words, settings, _toolsim_folder / f"proxy-{next(numbers)}")
        return started[key]

    try:
        yield start
    finally:
        for proxy in started.values():
            proxy.stop()


def _start(words: Sequence[str], settings: Sequence[str], folder: Path) -> Child:
    from toolsim.recordings.child import Child, StartFailed

    try:
        return Child(words, settings, folder)
    except StartFailed as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture
def toolsim_replay(
    request: pytest.FixtureRequest, _toolsim_proxies: _Start, _toolsim_folder: Path
) -> Iterator[Callable[..., ReplayServer | Recorder]]:
    """Serve the exchanges recorded in a folder: ``toolsim_replay("recordings", manifest="calls").base_url``.

    The path of the folder is absolute, or relative to the test's file. It can also be the path of a single recording.
    By default, each test has a separate folder, ``recordings/MODULE/TEST``. Keyword arguments are toolsim options
    without the prefix. They override the options under which the exchanges were recorded.

    ``record_from`` is the base URL of the backend to use with ``--toolsim-record``, which records its answers if the
    test passes. ``normalise`` contains patterns for text in requests that may differ from the recording. Each pattern
    is a regular expression or a name in ``NORMALISERS``.
    """
    backends = request.node.stash.setdefault(_BACKENDS, [])
    recorders: list[Recorder] = []

    def serve(
        folder: str | Path = "", *, record_from: str = "", normalise: Sequence[str] = (), **options: Value
    ) -> ReplayServer | Recorder:
        path = request.path.parent / (folder or Path("recordings", request.path.stem, _file_name(request.node.name)))
        files = sorted(path.glob("*.flow")) if path.suffix != ".flow" else [path]
        settings = [f"toolsim_{name}={text}" for name, value in options.items() for text in _texts(value)]
        mode = request.config.getoption("--toolsim-record")
        if record_from and (mode == "all" or (mode == "once" and not files)):
            recorder = _recorder(path, record_from, settings, _toolsim_folder)
            recorders.append(recorder)
            return recorder
        if not files or not files[0].is_file():
            hint = "; pytest --toolsim-record=once creates the recording" if record_from else ""
            pytest.fail(f"toolsim_replay: no .flow file at {path}{hint}", pytrace=False)
        # Each recording can be served several times, so that no test depends on the tests before it.
        reusing = [*settings, "server_replay_reuse=true"]
        patterns = [_pattern(name) for name in normalise]

        def start() -> Child:
            served = _normalised(files, patterns, _toolsim_folder) if patterns else files
            return _toolsim_proxies([word for file in served for word in ("-S", str(file))], reusing)

        recordings = ReplayServer(files, settings, start)
        backends.append(recordings)
        return recordings

    yield serve
    for recorder in recorders:
        recorder.finish(keep=request.node.stash.get(_HAS_PASSED, False))


def _recorder(path: Path, url: str, settings: Sequence[str], folder: Path) -> Recorder:
    from toolsim.recordings.child import in_front_of

    try:
        words = in_front_of(url)
    except ValueError as problem:
        pytest.fail(f"toolsim_replay: record_from: {problem}", pytrace=False)
    captured = Path(tempfile.mkdtemp(prefix="captured-", dir=folder))
    settings = [*settings, f"toolsim_upstream={url}", f"toolsim_capture={captured}"]
    return Recorder(path, lambda: _start(words, settings, folder / f"of-{captured.name}"), captured)


def _pattern(name: str) -> str:
    """Return the pattern for an entry of ``normalise``, which is a name or the pattern itself."""
    pattern = NORMALISERS.get(name, name)
    try:
        re.compile(pattern)
    except re.error as problem:
        names = ", ".join(NORMALISERS)
        pytest.fail(f"toolsim_replay: normalise: {name!r} is neither {names} nor a pattern: {problem}", pytrace=False)
    return pattern


def _normalised(files: Sequence[Path], patterns: Sequence[str], folder: Path) -> list[Path]:
    """Copy recordings, with the patterns for ignored text in the metadata, and return the paths of the copies."""
    from hashlib import sha256

    # Only mitmproxy.io is imported. Importing mitmproxy's addons causes warnings, which a test suite might turn into
    # errors.
    from mitmproxy.io import FlowWriter, read_flows_from_paths

    key = sha256(repr((files, patterns)).encode()).hexdigest()[:16]
    copies = folder / f"normalised-{key}"
    if not copies.exists():
        copies.mkdir()
        for file in files:
            with (copies / file.name).open("wb") as copy:
                writer = FlowWriter(copy)  # type: ignore[no-untyped-call]
                for side in read_flows_from_paths([file]):
                    side.metadata[NOTE] = side.metadata.get(NOTE, {}) | {NORMALISE: list(patterns)}
                    writer.add(side)
    return [copies / file.name for file in files]


def _file_name(node: str) -> str:
    return re.sub(r"[^\w.-]+", "-", node).strip("-")


@pytest.fixture(scope="session")
def _toolsim_model_server() -> Iterator[ModelServer]:
    from toolsim.recordings.scripted_model import ModelServer

    server = ModelServer()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def toolsim_model(
    request: pytest.FixtureRequest, _toolsim_proxies: _Start, _toolsim_model_server: ModelServer
) -> Iterator[ScriptedModel]:
    """Provide a model, behind a running proxy, whose answers and errors the test specifies.

    To specify them, use ``toolsim_model.answer("Hello")``, ``.call("get_weather", city="Bonn")`` and
    ``.next_error(429)``. Clients use ``.base_url``. ``.asked`` and ``.assert_asked`` show the requests that the model
    received.
    """
    from toolsim.recordings.child import in_front_of
    from toolsim.recordings.scripted_model import ScriptedModel

    url = _toolsim_model_server.url
    fixed = [f"toolsim_upstream={url}", "toolsim_backend=chat", "toolsim_engine=unknown", "toolsim_profiles=off"]
    model = ScriptedModel(lambda settings: _toolsim_proxies(in_front_of(url), [*fixed, *settings]).port)
    request.node.stash.setdefault(_BACKENDS, []).append(model)
    _toolsim_model_server.current = model
    yield model
    _toolsim_model_server.current = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test if some of its requests were not answered.

    If the test has already failed, add these requests to its report.
    """
    try:
        yield
    except BaseException:
        if unmatched := _unmatched(item):
            item.add_report_section("call", "toolsim", unmatched)
        raise
    if unmatched := _unmatched(item):
        pytest.fail(unmatched, pytrace=False)
    item.stash[_HAS_PASSED] = True


def _unmatched(item: pytest.Item) -> str:
    return "\n".join(message for backend in item.stash.get(_BACKENDS, []) for message in backend.unmatched)


def _texts(value: Value) -> list[str]:
    if isinstance(value, bool):
        return [str(value).lower()]
    return [str(value)] if isinstance(value, str | int) else list(value)
