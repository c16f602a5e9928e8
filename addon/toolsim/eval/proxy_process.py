"""Runs mitmdump with the addon in front of the evaluated server, so that the evaluation measures the real product.

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
        """Start a mitmdump with these addon options in the new folder ``folder``. Raises StartFailed if this fails."""
        captures = folder.with_name(f"{folder.name}-captures")
        captures.mkdir(parents=True)
        # The user's own profiles must not affect the result, unless one of the options enables them.
        settings = {"toolsim_profiles": "off", "toolsim_upstream": target}
        settings |= {name: value for name, _, value in (option.partition("=") for option in options)}
        given = [f"toolsim_capture={captures}", *(f"{name}={value}" for name, value in settings.items())]
        starting = asyncio.create_task(asyncio.to_thread(Child, in_front_of(target), given, folder))
        try:
            child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread cannot be canceled, so the process that it starts is stopped here.
            (await starting).stop()
            raise
        return cls(f"http://127.0.0.1:{child.port}{parse_url(target).path}", captures, child)

    async def stop(self) -> None:
        """Stop the process. Before it exits, it writes its recordings."""
        await asyncio.to_thread(self._child.stop)


class Proxies:
    """The proxies of an evaluation: one mitmdump for each ``user`` (a model) and set of addon options."""

    def __init__(self, target: str, *, flows: Path | None = None) -> None:
        self._target = target
        self._flows = flows
        self._folder = Path(tempfile.mkdtemp(prefix="toolsim-eval-"))
        self._running: dict[tuple[str, tuple[str, ...]], Proxy] = {}
        # Proxies start one at a time. Otherwise, they would overwrite each other's certificate authority.
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
        """Stop all proxies, copy their recordings to ``flows`` unless it is None, and remove temporary files."""
        await asyncio.gather(*(proxy.stop() for proxy in self._running.values()))
        if self._flows is not None:
            for number, proxy in enumerate(self._running.values()):
                shutil.copytree(proxy.captures, self._flows / f"proxy-{number}", dirs_exist_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)
