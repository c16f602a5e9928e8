"""The evaluation's own mitmdump, with the addon in front of the target: it measures the real product.

It records each exchange (``toolsim_capture``), from which the evaluation reads the model's actual prompt and its output
before the addon turned that into calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from toolsim.recordings import child

# The first start creates a certificate authority, on a machine that may be busy.
START_SECONDS = 60.0
STOP_SECONDS = 10.0


class ProxyFailed(Exception):
    """mitmdump did not start; the message contains the end of its log."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running mitmdump: its base URL for clients, and the folder where it records exchanges."""

    base_url: str
    captures: Path


class Proxies:
    """Starts one mitmdump per user and set of addon options, on first use; they share a certificate authority."""

    def __init__(self, target: str, *, flows: Path | None = None) -> None:
        self._target = target
        self._flows = flows
        self._folder = Path(tempfile.mkdtemp(prefix="toolsim-eval-"))
        self._running: dict[tuple[str, tuple[str, ...]], tuple[Proxy, asyncio.subprocess.Process]] = {}
        # The first one creates the authority; two at once would overwrite each other's.
        self._starting = asyncio.Lock()

    async def get(self, user: str, options: Sequence[str]) -> Proxy:
        """Return the proxy of one user (who makes one request at a time) with these options. Raises ProxyFailed."""
        key = (user, tuple(options))
        async with self._starting:
            if key not in self._running:
                self._running[key] = await self._start(key[1])
        return self._running[key][0]

    async def _start(self, options: Sequence[str]) -> tuple[Proxy, asyncio.subprocess.Process]:
        origin = urlsplit(self._target)
        folder = self._folder / f"proxy-{len(self._running)}"
        captures = folder / "captures"
        captures.mkdir(parents=True)
        settings = [f"confdir={self._folder / 'confdir'}", f"toolsim_capture={captures}", *options]
        if not any(option.startswith("toolsim_log=") for option in options):
            # JSON logging: the startup banner would query the target's model list.
            settings.append("toolsim_log=json")
        if not any(option.startswith("toolsim_profiles=") for option in options):
            # The result must not depend on the user's own profiles.
            settings.append("toolsim_profiles=off")
        if not any(option.startswith("toolsim_upstream=") for option in options):
            settings.append(f"toolsim_upstream={self._target}")
        command = child.command(["--mode", f"reverse:{origin.scheme}://{origin.netloc}"], settings)
        log = folder / "log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                # Ctrl-C is meant for the evaluation, which still has to write a report.
                start_new_session=True,
            )
        try:
            port = await asyncio.wait_for(_listening(process, log), START_SECONDS)
        except TimeoutError:
            await _stop(process)
            raise ProxyFailed(f"mitmdump did not start:\n{child.tail(_read(log))}") from None
        except BaseException:
            await _stop(process)
            raise
        return Proxy(f"http://127.0.0.1:{port}{origin.path.rstrip('/')}", captures), process

    async def halt(self) -> None:
        """Stop all of them; their recordings stay until ``stop``."""
        await asyncio.gather(*(_stop(process) for _, process in self._running.values()))

    async def stop(self) -> None:
        """Stop all of them, move their recordings to the folder of flows if any, and remove temporary files."""
        await self.halt()
        if self._flows is not None:
            for number, (proxy, _) in enumerate(self._running.values()):
                kept = self._flows / f"proxy-{number}"
                shutil.copytree(proxy.captures, kept, dirs_exist_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)


@asynccontextmanager
async def proxies(target: str, *, flows: Path | None = None) -> AsyncIterator[Proxies]:
    """Stop all of them, move their recordings to the folder of flows, if any, and clean up."""
    started = Proxies(target, flows=flows)
    try:
        yield started
    finally:
        await started.stop()


async def _listening(process: asyncio.subprocess.Process, log: Path) -> int:
    while True:
        try:
            port = child.port(_read(log))
        except ValueError as problem:
            raise ProxyFailed(str(problem)) from problem
        if process.returncode is not None:
            raise ProxyFailed(f"mitmdump cannot run with the addon:\n{child.tail(_read(log))}")
        if port is not None:
            return port
        await asyncio.sleep(0.05)


def _read(log: Path) -> str:
    return log.read_text(errors="replace")


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
