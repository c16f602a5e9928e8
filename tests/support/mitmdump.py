"""Runs a real ``mitmdump`` with the addon on a free port of 127.0.0.1."""

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
from unittest.mock import patch

from cryptography.hazmat.primitives.asymmetric import ec
from mitmproxy import certs
from support import preloaded

ROOT = Path(__file__).parents[2]
ADDON = ROOT / "addon" / "toolsim.py"

# This command starts a new interpreter, like the ``mitmdump`` command.
MITMDUMP = (sys.executable, "-c", "from mitmproxy.tools.main import mitmdump; mitmdump()")

# The timeout is long because the first start creates a certificate authority and the machine can be busy.
START_SECONDS = 60.0
STOP_SECONDS = 20.0
# mitmproxy logs one of these texts if one of its layers or an addon raises an exception. Such a message fails the test.
CRASHES = re.compile(r"Traceback \(most recent call last\)|has crashed|Addon error|Task exception was never retrieved")


class Mitmdump:
    """``mitmdump -s addon/toolsim.py`` as a context manager.

    ``target`` is the backend of a reverse proxy, or None for mitmproxy's regular mode. ``options`` are mitmproxy's
    options, such as ``toolsim_backend="chat"``; a list sets a sequence, and booleans are converted to mitmproxy's
    notation. By default, ``toolsim_log`` is json and ``toolsim_drain_timeout`` is 0. ``command`` replaces the default
    command, which is a fork of a process that has imported all modules (`preloaded.py`). ``script`` replaces the addon;
    None loads no script. ``log()`` returns the log, which is also printed if mitmdump fails to start. On exit, all
    files are deleted, and a crash in the log fails the test.
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
        # Do not fork if coverage is measured, because the coverage of a fork would be missing.
        self._command = command or (MITMDUMP if "COVERAGE_PROCESS_CONFIG" in os.environ else ())
        self._arguments = ["--listen-port", "0", "--set", f"confdir={_authority()}"]
        if listen_host:
            self._arguments += ["--listen-host", listen_host]
        if target is not None:
            self._arguments += ["--mode", f"reverse:{target}"]
        if script is not None:
            self._arguments += ["-s", str(script)]
            # With a text log, the startup banner requests the backend's models, which the tests do not expect.
            options.setdefault("toolsim_log", "json")
            # If a test ends in the middle of an answer, mitmdump must not wait for the end of the answer.
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
        """The listener's URL, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        """The path of the CA certificate that a client must trust so that its TLS connections can be intercepted."""
        return _authority() / "mitmproxy-ca-cert.pem"

    @property
    def pid(self) -> int:
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to mitmdump, by default SIGTERM."""
        os.kill(self.pid, number)

    def ended(self, seconds: float = STOP_SECONDS) -> int:
        """Wait until the process exits, and return its exit code."""
        code = self._exit_code(seconds)
        assert code is not None, f"mitmdump did not end:\n{self.log()}"
        return code

    def kill(self) -> None:
        """Kill the process with SIGKILL, as the system does if it runs out of memory."""
        assert self._process is not None
        self._process.kill()
        assert self._exit_code(STOP_SECONDS) is not None

    def log(self) -> str:
        """Return the complete log so far."""
        return self._log.read_text(errors="replace") if self._final_log is None else self._final_log

    def wait_for(self, pattern: str, *, count: int = 1, seconds: float = 20.0) -> re.Match[str]:
        """Wait until ``pattern`` has at least ``count`` matches in the log; return match number ``count``."""
        end = time.monotonic() + seconds
        while True:
            found = list(re.finditer(pattern, self.log()))
            if len(found) >= count:
                return found[count - 1]
            if time.monotonic() > end or (self._process is not None and self._exit_code(0) is not None):
                raise AssertionError(f"mitmdump never logged {pattern!r} {count} times:\n{self.log()}")
            time.sleep(0.02)

    def exit_code(self, seconds: float = START_SECONDS) -> int:
        """Start mitmdump, do not wait for its listener, and return its exit code once it has exited."""
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
        """Wait up to ``seconds`` for the process to exit; return its exit code, or None if it is still running."""
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
    """Create a folder with a CA, only once per test process.

    mitmproxy's own CA has an RSA key, whose validation takes half of the startup time.
    """
    folder = tempfile.TemporaryDirectory(prefix="toolsim-mitmproxy-")
    with patch.object(certs.rsa, "generate_private_key", lambda **_: ec.generate_private_key(ec.SECP256R1())):
        certs.CertStore.create_store(Path(folder.name), "mitmproxy", 0)
    return folder


def _authority() -> Path:
    return Path(_certificates().name)
