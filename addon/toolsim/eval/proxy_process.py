"""Runs mitmdump with the addon in front of the target, so that the evaluation measures the real product.

The addon records each exchange (``toolsim_capture``). The recordings contain the model's actual prompt, and the model's
output before the addon converted it to calls.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from toolsim.proxy.address import parse_url
from toolsim.recordings.child import Child, in_front_of


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running mitmdump, with its base URL for clients and the folder in which it records exchanges."""

    base_url: str
    captures: Path
    _child: Child

    @classmethod
    async def start(cls, target: str, options: Iterable[str], folder: Path) -> Proxy:
        """Start a mitmdump with these addon options and a new ``folder`` for its files, or raise StartFailed."""
        captures = folder.with_name(f"{folder.name}-captures")
        captures.mkdir(parents=True)
        # By default, the result must not depend on the user's own profiles.
        settings = {"toolsim_profiles": "off", "toolsim_upstream": target}
        settings |= {name: value for name, _, value in (option.partition("=") for option in options)}
        given = [f"toolsim_capture={captures}", *(f"{name}={value}" for name, value in settings.items())]
        starting = asyncio.create_task(asyncio.to_thread(Child, in_front_of(target), given, folder))
        try:
            child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Cancellation does not stop the thread, so the process that the thread starts has to be stopped here.
            (await starting).stop()
            raise
        return cls(f"http://127.0.0.1:{child.port}{parse_url(target).path}", captures, child)

    async def stop(self) -> None:
        """Stop the process after it has written its recordings."""
        await asyncio.to_thread(self._child.stop)


class Proxies:
    """Starts mitmdumps on first use, one for each user and set of addon options, and stops them at the end."""

    def __init__(self, target: str, *, flows: Path | None = None) -> None:
        self._target = target
        self._flows = flows
        self._folder = Path(tempfile.mkdtemp(prefix="toolsim-eval-"))
        self._running: dict[tuple[str, tuple[str, ...]], Proxy] = {}
        # The first process creates the certificate authority, which concurrent processes would overwrite.
        self._starting = asyncio.Lock()

    async def get(self, user: str, options: Iterable[str]) -> Proxy:
        """Return the proxy for ``user`` with these options, started on first use. Raises StartFailed if that fails."""
        key = (user, tuple(options))
        async with self._starting:
            if key not in self._running:
                folder = self._folder / f"proxy-{len(self._running)}"
                self._running[key] = await Proxy.start(self._target, key[1], folder)
        return self._running[key]

    async def aclose(self) -> None:
        """Stop all proxies, move their recordings to the flows folder (if specified), and remove temporary files."""
        await asyncio.gather(*(proxy.stop() for proxy in self._running.values()))
        if self._flows is not None:
            for number, proxy in enumerate(self._running.values()):
                shutil.copytree(proxy.captures, self._flows / f"proxy-{number}", dirs_exist_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)
