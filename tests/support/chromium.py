"""A headless Chromium, controlled through the DevTools protocol over a pair of pipes.

This requires no driver, WebSocket or package. Each message ends with a zero byte. For the protocol, see
https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
# Time limit in seconds. It is generous because other tests can slow the machine down.
_SECONDS = 60.0


class Chromium:
    """A browser with a single page, as a context manager."""

    def __init__(self, *, width: int = 1280, height: int = 900) -> None:
        assert CHROMIUM is not None
        self._folder = Path(tempfile.mkdtemp(prefix="toolsim-chromium-"))
        self._size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._next = 0
        self._buffer = b""
        self._session: str | None = None

    def __enter__(self) -> Self:
        child_in, self._write = os.pipe()
        self._read, child_out = os.pipe()
        # The browser expects the pipes to be descriptors 3 and 4. subprocess cannot renumber descriptors, but bash can.
        renumber = f'exec "$0" "$@" 3<&{child_in} 4>&{child_out}'
        command = ["bash", "-c", renumber, str(CHROMIUM), *_FLAGS, f"--user-data-dir={self._folder}", "about:blank"]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, pass_fds=(child_in, child_out), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        os.close(child_in)
        os.close(child_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Emulation.setDeviceMetricsOverride", **self._size)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + _SECONDS
        while True:
            answer = json.loads(self._message(end))
            if answer.get("id") == self._next:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _message(self, end: float) -> bytes:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0))
            data = os.read(self._read, 1 << 16) if ready else b""
            if not data:
                log = (self._folder / "log").read_text(errors="replace")
                raise AssertionError(f"Chromium did not answer:\n{log[-2000:]}")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return message

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, evaluated on the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, script: str, seconds: float = _SECONDS) -> Any:
        """Wait until a JavaScript expression is true; return its value."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            if time.monotonic() > end:
                raise AssertionError(f"never true: {script}\n{self.text()}")
            time.sleep(0.05)
        return value

    def text(self) -> str:
        """Return the visible text of the page."""
        return self.run("document.body.innerText")

    def click(self, words: str, selector: str = "a, button, label, td, div[role=button]") -> None:
        """Click the first visible element whose text is ``words``."""
        find = (
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".find(e => e.offsetParent && e.innerText.trim().toLowerCase() === {json.dumps(words.lower())})"
        )
        self.wait_for(f"!!{find}")
        self.run(f"{find}.click()")

    def screenshot(self, path: Path, *, x: int = 0, y: int = 0, width: int, height: int) -> None:
        """Write a screenshot of an area of the page to a PNG file."""
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        picture = self.call("Page.captureScreenshot", format="png", clip=clip)
        path.write_bytes(base64.b64decode(picture["data"]))
