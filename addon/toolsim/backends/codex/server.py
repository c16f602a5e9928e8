"""Supervises the ``codex app-server`` child: starts it, performs the handshake, and restarts it after it has died.

    start() ──▶ starting ── handshake done ──▶ serving
                 ▲    │                           │ the child dies
                 │    │ cannot start              ▼
                 └────┴──── delay over ◀───── backing off          stop(), from any state: the child is stopped

The state determines the result of ``child()``:
- serving: the child, immediately.
- starting: the child, or a 503 after ``_START_PATIENCE``. A child that served and then died is replaced within a
  second, so that the next request also waits instead of failing.
- backing off after a failed start, or after several deaths in a row: a 503 with the reason and, as Retry-After, the
  time until the next attempt.

The delay doubles from ``_MIN_DELAY`` to ``_MAX_DELAY``. It is reset once a child has served for ``_STEADY_SECONDS``,
because a later death is not a startup problem. Each reason is logged once, regardless of the number of failed attempts.
A missing program or login can be fixed while mitmproxy runs, and the next attempt then succeeds.

The handshake is ``initialize``, ``initialized`` and two queries, for the login and for the MCP servers and the default
model in the user's configuration. Versions that are too old are rejected. Fourteen versions from 0.110 to 0.169 were
tested:

    up to 0.120   no ``thread/inject_items``
    up to 0.121   no ``codex debug models``, so some models would keep their own tools
    up to 0.132   a turn without input fails, with an ``error`` but no ``turn/completed``
    from 0.133    all of this works

Each child has a temporary folder with the model catalog, without tools, and an empty working directory, so that Codex
finds no project. It runs in a separate session, so that Ctrl-C reaches only mitmproxy, which then stops the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from toolsim.backends.codex.child import Child, kill_group
from toolsim.backends.codex.errors import CodexUnavailable, RpcError
from toolsim.backends.codex.text_only import text_catalog
from toolsim.command_line import resolved
from toolsim.core.errors import ApiError
from toolsim.version import __version__
from toolsim.wire.json_fields import mapping, string

logger = logging.getLogger(__name__)

# Startup timeout, in seconds. A cold start takes 0.3 s, but it takes longer if a login is refreshed over the network.
_START_TIMEOUT = 30.0
_CATALOG_TIMEOUT = 10.0
_START_PATIENCE = 15.0
_MIN_DELAY = 0.25
_MAX_DELAY = 30.0
_STEADY_SECONDS = 10.0

# The restart delay, in seconds, up to which requests wait for the new child. If the delay is longer, they fail
# immediately.
_SHORT_DELAY = 1.0
_MAX_QUOTED_CHARS = 200

# Minimum major and minor version of Codex (see the module docstring).
_MIN_VERSION = (0, 133)


class _StartFailure(Exception):
    """Raised if a child cannot be started or used. The message is for the operator."""


class AppServer:
    """Keeps a ``codex app-server`` process running from ``start`` to ``stop``, and restarts it if necessary.

    ``command`` is its command line, as a list.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._supervisor: asyncio.Task[None] | None = None
        self._child: Child | None = None
        self._failure: str | None = None
        self._retry_at = 0.0
        self._changed = asyncio.Event()
        self._last_logged: str | None = None

    async def start(self) -> None:
        """Start supervising a child, without waiting until it has started. Never raises an exception."""
        self._supervisor = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """Stop the child and wait until it has exited."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        self._child, self._failure = None, "The Codex app-server has been stopped."
        self._changed.set()

    async def child(self) -> Child:
        """Return the running child. Wait if it is starting.

        Raises CodexUnavailable (503) if the start has failed or takes too long.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_PATIENCE):
                while not (self._child and self._child.is_alive) and self._failure is None:
                    self._changed.clear()
                    await self._changed.wait()
        if self._child is not None and self._child.is_alive:
            return self._child
        message = self._failure or "The Codex app-server is still starting."
        wait = max(1, math.ceil(self._retry_at - asyncio.get_running_loop().time()))
        raise CodexUnavailable(ApiError(message, code="backend_unavailable", status=503, retry_after=wait))

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        delay = _MIN_DELAY
        while True:
            with tempfile.TemporaryDirectory(prefix="toolsim-codex-", ignore_cleanup_errors=True) as folder:
                try:
                    child, running = await self._spawn(Path(folder))
                except _StartFailure as failure:
                    self._set_failure(str(failure))
                else:
                    began = loop.time()
                    try:
                        self._set_serving(child)
                        await asyncio.shield(running)
                    finally:
                        await _cancel_and_wait(running)
                    self._child = None
                    if loop.time() - began > _STEADY_SECONDS:
                        delay = _MIN_DELAY
                    died = f"The Codex app-server {child.exit_reason()}"
                    logger.warning("%s; restarting it", died)
                    if delay > _SHORT_DELAY:
                        self._set_failure(died)
            self._retry_at = loop.time() + delay
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY)

    def _set_serving(self, child: Child) -> None:
        self._child, self._failure, self._last_logged = child, None, None
        self._changed.set()
        logger.info("Codex %s is ready", child.version)

    def _set_failure(self, message: str) -> None:
        self._failure = message
        self._changed.set()
        if self._last_logged != message:
            logger.error("%s", message)
            self._last_logged = message

    async def _spawn(self, folder: Path) -> tuple[Child, asyncio.Task[None]]:
        """Start a child in ``folder`` and perform the handshake. Return the child and the task for ``Child.run``."""
        workdir = folder / "empty"
        workdir.mkdir()
        options = ["-c", "thread_unload_delay_secs=0"]
        if (catalog := await self._catalog()) is not None:
            (folder / "models.json").write_bytes(catalog)
            options += ["-c", f"model_catalog_json={json.dumps(str(folder / 'models.json'))}"]
        with self._spawn_errors():
            _, child = await asyncio.get_running_loop().subprocess_exec(
                lambda: Child(workdir), *resolved(self._command), *options, start_new_session=True
            )
        running = asyncio.create_task(child.run())
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                await _handshake(child)
        except BaseException as problem:
            await _cancel_and_wait(running)
            command = " ".join(self._command)
            match problem:
                case CodexUnavailable():
                    raise _StartFailure(f"`{command}` {child.exit_reason()}") from problem
                case RpcError():
                    raise _StartFailure(
                        f"Codex {child.version or '(unknown version)'} does not work with toolsim; update it (npm "
                        f"install -g @openai/codex@latest): {problem.message[:_MAX_QUOTED_CHARS]}"
                    ) from problem
                case TimeoutError():
                    raise _StartFailure(f"`{command}` did not answer within {_START_TIMEOUT:.0f} s.") from problem
            raise
        if catalog is None:
            logger.warning(
                "Codex printed no model catalog (`debug models`), so the model might see Codex's built-in tools"
            )
        return child, running

    async def _catalog(self) -> bytes | None:
        """Return Codex's model catalog without the models' tools, or None if Codex cannot print its catalog."""
        if "app-server" not in self._command:
            return None
        printer = [*self._command[: self._command.index("app-server")], "debug", "models"]
        pipe, devnull = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        with self._spawn_errors():
            process = await asyncio.create_subprocess_exec(
                *resolved(printer), stdin=devnull, stdout=pipe, stderr=devnull, start_new_session=True
            )
        try:
            printed, _ = await asyncio.wait_for(process.communicate(), _CATALOG_TIMEOUT)
        except TimeoutError:
            return None
        finally:
            if process.returncode is None:
                kill_group(process.pid)
                await process.wait()
        return text_catalog(printed)

    @contextlib.contextmanager
    def _spawn_errors(self) -> Iterator[None]:
        """Convert operating system errors to one-line messages that also suggest a solution."""
        try:
            yield
        except OSError as problem:
            raise _StartFailure(
                f"Cannot run `{self._command[0]}` ({problem.strerror or problem}): install Codex"
                " (npm install -g @openai/codex), or set toolsim_codex_command."
            ) from problem


async def _handshake(child: Child) -> None:
    """Perform the handshake with a child.

    Raises RpcError if Codex is too old, and _StartFailure if there is no login.
    """
    greeting = {
        "clientInfo": {"name": "toolsim", "title": "toolsim", "version": __version__},
        "capabilities": {"experimentalApi": True},
    }
    greeted = await child.request("initialize", greeting)
    version = re.search(r"/(\d[\w.\-]*)", string(greeted.get("userAgent")))
    child.version = version[1] if version else ""
    _check_version(child.version)
    child.notify("initialized")
    account = await child.request("account/read", {})
    if account.get("requiresOpenaiAuth") is True and account.get("account") is None:
        raise _StartFailure("Codex is not logged in: run `codex login`.")
    with contextlib.suppress(RpcError):
        config = mapping((await child.request("config/read", {})).get("config"))
        child.mcp_servers = tuple(mapping(config.get("mcp_servers")))
        child.default_model = string(config.get("model")) or None


def _check_version(version: str) -> None:
    """Raise _StartFailure if Codex is too old. Unknown versions and 0.0.0 (a private build) are accepted."""
    parts = re.match(r"(\d+)\.(\d+)", version)
    if parts and (0, 0) < (int(parts[1]), int(parts[2])) < _MIN_VERSION:
        raise _StartFailure(
            f"Codex {version} is too old; toolsim requires {'.'.join(map(str, _MIN_VERSION))} or newer. Update it "
            "(npm install -g @openai/codex@latest)."
        )


async def _cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for it to finish.

    If the caller is canceled, this function continues to wait, so that no child is left half stopped.
    """
    task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as problem:
            cancelled = problem
    if cancelled is not None:
        raise cancelled
