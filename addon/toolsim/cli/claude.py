"""``toolsim claude``: the settings for Claude Code, and Claude Code itself over any backend.

toolsim claude              prints the variables for a running toolsim
toolsim claude URL          serves that backend, and prints them
… --run [-- ARGUMENTS]      starts Claude Code with them, and ends when it does
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from mitmproxy import ctx

from toolsim.cli import serve
from toolsim.command_line import UsageError, resolved
from toolsim.proxy.address import url_host

_URL, _KEY, _SEARCH = "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "ENABLE_TOOL_SEARCH"
_WAIT = 0.1


def run(start: serve.Start | None, host: str, port: int, command: Sequence[str]) -> int:
    """Print the variables, or run ``command`` with them; return the exit code. Raises UsageError.

    ``start``: what to serve, None for a toolsim that listens on ``host`` and ``port``. ``command``: empty to print.
    """
    if start is None and not command:
        print(_shown(host, port))
        return 0
    if start is None:
        _check_is_there(host, port)
    if command and shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]} is not installed: npm install -g @anthropic-ai/claude-code")
    if start is None:
        return subprocess.run(command, env=_environment(host, port, ""), check=False).returncode
    if command:
        # The terminal is Claude Code's.
        quiet = ("toolsim_log=off", "termlog_verbosity=error", "flow_detail=0")
        start = replace(start, settings=(*quiet, *start.settings))
    over = Over(command)
    return serve.run(start, over) or over.code


def _check_is_there(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError as problem:
        message = f"nothing answers on {host}:{port}: say which backend to serve, toolsim claude URL --run"
        raise UsageError(message) from problem


class Over:
    """An addon that prints the variables once the proxy is up, or runs a command and then shuts the proxy down."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._task: asyncio.Task[None] | None = None
        self.code = 0
        """The command's exit code."""

    def running(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._begin())

    def done(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()

    async def _begin(self) -> None:
        while not (listening := ctx.master.addons.get("proxyserver").listen_addrs()):  # type: ignore[no-untyped-call]
            await asyncio.sleep(_WAIT)
        host, port, *_ = listening[0]
        if not self._command:
            print(_shown(host, port), flush=True)
            return
        child = await asyncio.create_subprocess_exec(
            *resolved(self._command), env=_environment(host, port, ctx.options.toolsim_api_key)
        )
        with suppress(NotImplementedError):  # Windows.
            # Ctrl-C goes to both processes, and is meant for the one on the screen.
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
        self.code = await child.wait()
        ctx.master.shutdown()  # type: ignore[no-untyped-call]


def _address(host: str, port: int) -> str:
    return f"http://{url_host(host)}:{port}"


def _shown(host: str, port: int) -> str:
    return f"Claude Code:  {_URL}={_address(host, port)} {_KEY}=none {_SEARCH}=true claude --model NAME"


def _environment(host: str, port: int, key: str) -> dict[str, str]:
    # Some versions turn their search of deferred tools off over any server but Anthropic's.
    return {_SEARCH: "true", **os.environ, _URL: _address(host, port), _KEY: key or "none"}
