"""A real ``mitmdump`` with the addon, on a free port of 127.0.0.1."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from support import preloaded

ROOT = Path(__file__).parents[2]
ADDON = ROOT / "addon" / "toolsim.py"

# A start from nothing, as users do it.
MITMDUMP = (sys.executable, "-c", "from mitmproxy.tools.main import mitmdump; mitmdump()")

# The first start creates a certificate authority, on a machine that may be busy.
START_SECONDS = 60.0
STOP_SECONDS = 20.0
# What mitmproxy logs when one of its layers or an addon raises: never in the log of a test that passes.
CRASHES = re.compile(r"Traceback \(most recent call last\)|has crashed|Addon error|Task exception was never retrieved")


class Mitmdump:
    """``mitmdump -s addon/toolsim.py`` as a context manager.

    ``target``: the backend behind a reverse proxy; None = the regular mode. ``options``: mitmproxy's, such as
    ``toolsim_backend="chat"``; a list sets a sequence, True and False are written as mitmproxy expects them.
    ``command``: what to start; by default a fork of a process that has all imports (`preloaded.py`).
    ``script``: another script than the addon, None for no script at all. ``toolsim_log`` is json unless it is given.
    ``log()`` returns the log, which is printed when a start fails. Nothing is left on disk. On exit, a log that shows a
    crash fails the test.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        script: Path | None = ADDON,
        command: Sequence[str] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        listen_host: str = "127.0.0.1",
        allow_crashes: bool = False,
        **options: str | int | bool | Sequence[str],
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="toolsim-mitmdump-"))
        self.port = 0
        self._log = self._folder / "log"
        self._cwd = cwd or self._folder
        self._environment = environment or {}
        self._allow_crashes = allow_crashes
        # The coverage of a fork would not be measured.
        self._command = command or (MITMDUMP if "COVERAGE_PROCESS_CONFIG" in os.environ else ())
        self._arguments = ["--listen-port", "0", "--set", f"confdir={_authority()}"]
        if listen_host:
            self._arguments += ["--listen-host", listen_host]
        if target is not None:
            self._arguments += ["--mode", f"reverse:{target}"]
        if script is not None:
            self._arguments += ["-s", str(script)]
            # The greeting for people asks the backend for its models, which the tests do not expect.
            options.setdefault("toolsim_log", "json")
            # A test that ends in the middle of an answer does not wait for it.
            options.setdefault("toolsim_drain_timeout", 0)
        for name, value in options.items():
            values = [value] if isinstance(value, str | int) else value
            for item in values:
                text = str(item).lower() if isinstance(item, bool) else str(item)
                self._arguments += ["--set", f"{name}={text}"]
        self._arguments += arguments
        self._process: subprocess.Popen[bytes] | BaseProcess | None = None
        self._final_log: str | None = None

    @property
    def url(self) -> str:
        """The listener's address, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        """The certificate that a client must trust for TLS interception."""
        return _authority() / "mitmproxy-ca-cert.pem"

    @property
    def pid(self) -> int:
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, by default the one that asks it to end."""
        os.kill(self.pid, number)

    def ended(self, seconds: float = STOP_SECONDS) -> int:
        """Wait until the process has ended, and return its exit code."""
        code = self._exit_code(seconds)
        assert code is not None, f"mitmdump did not end:\n{self.log()}"
        return code

    def kill(self) -> None:
        """Kill the process, as a crash or the lack of memory would."""
        assert self._process is not None
        self._process.kill()
        assert self._exit_code(STOP_SECONDS) is not None

    def log(self) -> str:
        """Return all that mitmdump has logged so far."""
        return self._log.read_text(errors="replace") if self._final_log is None else self._final_log

    def wait_for(self, pattern: str, *, count: int = 1, seconds: float = 20.0) -> re.Match[str]:
        """Wait until the log matches ``pattern`` ``count`` times; return the last of these matches."""
        end = time.monotonic() + seconds
        while True:
            found = list(re.finditer(pattern, self.log()))
            if len(found) >= count:
                return found[count - 1]
            if time.monotonic() > end or (self._process is not None and self._exit_code(0) is not None):
                raise AssertionError(f"mitmdump never logged {pattern!r} {count} times:\n{self.log()}")
            time.sleep(0.02)

    def exit_code(self, seconds: float = START_SECONDS) -> int:
        """Start without waiting for the listener; return the exit code when the process ends by itself."""
        self._spawn()
        try:
            code = self._exit_code(seconds)
        finally:
            self._stop()
        assert code is not None, f"mitmdump did not end:\n{self.log()}"
        return code

    def _spawn(self) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self._environment}
        with self._log.open("wb") as log:
            if self._command:
                self._process = subprocess.Popen(
                    [*self._command, *self._arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._cwd,
                    env=environment,
                )
            else:
                self._process = preloaded.start(self._arguments, self._log, self._cwd, environment)

    def _exit_code(self, seconds: float) -> int | None:
        """Wait for the end of the process, at most ``seconds``; return its exit code, None while it runs."""
        if isinstance(self._process, BaseProcess):
            self._process.join(seconds)
            return self._process.exitcode
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def __enter__(self) -> Self:
        self._spawn()
        try:
            self.port = int(self.wait_for(r"listening at \S+:(\d+)\.", seconds=START_SECONDS)[1])
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        self._stop()
        if kind is None and not self._allow_crashes and CRASHES.search(self.log()):
            raise AssertionError(f"mitmdump crashed:\n{self.log()}")

    def _stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        if self._exit_code(STOP_SECONDS) is None:
            self.kill()
        self._final_log = self.log()
        shutil.rmtree(self._folder, ignore_errors=True)


@cache
def _certificates() -> tempfile.TemporaryDirectory[str]:
    """One folder of certificates per test process: creating an authority takes a second."""
    return tempfile.TemporaryDirectory(prefix="toolsim-mitmproxy-")


def _authority() -> Path:
    return Path(_certificates().name)
