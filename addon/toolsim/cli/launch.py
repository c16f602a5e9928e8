"""``toolsim launch``, which starts an agent program with a backend. Also starts a proxy, unless one is running.

    toolsim launch claude http://127.0.0.1:11434/v1 -- --continue

If no URL is specified, the backend of a running toolsim is used, or else the backend in the user's settings file, or
else Ollama or LM Studio on this machine. The proxy runs in this process, and ends when the program ends. The exit code
is the program's, or 128 plus the number of the signal that killed the program, as in a shell. The user's files are
never changed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mitmproxy import ctx

from toolsim.cli import serve
from toolsim.cli.agents import AGENTS, Agent, Endpoint, named_model
from toolsim.cli.arguments import DEFAULT_PORT, LOCAL_SERVERS, MODEL_SUFFIX
from toolsim.cli.context_window import context_window
from toolsim.cli.probe import Answer, Unreachable, ask
from toolsim.command_line import UsageError, key_of, resolved
from toolsim.plugins import BUILTIN
from toolsim.proxy.address import is_loopback, parse_url, url_host
from toolsim.proxy.options.api_keys import FILE
from toolsim.proxy.reporting.startup_banner import stored_line
from toolsim.proxy.reporting.summary import printable
from toolsim.proxy.route import MODELS, OVERVIEW
from toolsim.stores.url import parse_store_url
from toolsim.wire.json_fields import mappings, string

_FIND_SECONDS = 3.0
"""Timeout of a query to a server that might not be running, in seconds."""
_MODELS_SECONDS = 20.0
"""Timeout of a query for the list of models, in seconds. A built-in backend needs a few seconds to start."""
_KILL_SECONDS = 5.0
_PAUSE = 0.1
_MAX_CHARS = 200
_INTERRUPTED = 130
# Options that silence the proxy's log, which would disturb the program on the same terminal.
_QUIET = ("toolsim_log=off", "termlog_verbosity=error", "flow_detail=0")


class LaunchError(Exception):
    """Raised for a problem with the backend or the program. The message describes the problem in one line."""


def run(args: Namespace, arguments: Sequence[str], with_file: Callable[[Path], Namespace]) -> int:
    """Start the program with ``arguments``, and return its exit code.

    ``with_file`` parses the command line again, together with the arguments in a settings file. Raises UsageError if
    the program is not installed, an argument is invalid, or no backend is found.
    """
    agent = AGENTS[args.agent]
    if shutil.which(agent.command) is None:
        raise UsageError(f"{agent.title} is not installed: {agent.installation}")
    key = key_of(args.key_env)
    # A proxy that is already running cannot apply ``--set`` or ``--web``.
    is_plain = not (args.set or args.web)
    if args.config is not None:
        args = with_file(args.config)
    running = _find_running(args, key) if is_plain else None
    if args.backend is None and running is None and args.config is None and (file := settings_file()).is_file():
        args = with_file(file)
        running = _find_running(args, key) if is_plain else None
    session = _Session(agent, arguments, key or "none", args.model)
    try:
        if running is not None:
            return asyncio.run(session.run(running.origin, running.backend))
        has_models = any(setting.startswith("toolsim_models=") for setting in args.set)
        return _serve(args, args.backend or ("" if has_models else _local_server(agent)), session)
    except LaunchError as problem:
        print(f"toolsim launch: {problem}", file=sys.stderr)
        return 1


def settings_file() -> Path:
    """Return the path of the user's settings file, which might not exist."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "toolsim" / "toolsim.toml"


# -- the backend, and a running proxy


@dataclass(frozen=True, slots=True)
class _Running:
    """A running toolsim, with a description of its backend."""

    origin: str
    backend: str


def _find_running(args: Namespace, key: str) -> _Running | None:
    """Return the toolsim at the listener's address, or None if no toolsim with the requested backend is running there.

    Raises UsageError if a running toolsim hides its backend because ``key`` is missing or wrong.
    """
    port = DEFAULT_PORT if args.port is None else args.port
    if not port:
        return None
    origin = f"http://{url_host(args.host)}:{port}"
    answer = _answer(origin + OVERVIEW, key)
    facts = answer.body if answer is not None and answer.body is not None else {}
    if facts.get("name") != "toolsim":
        return None
    backend = string(facts.get("backend"))
    if args.backend is not None:
        return _Running(origin, backend) if _is_backend(args.backend, facts) else None
    if not backend and facts.get("requires_key"):
        raise UsageError(
            f"the toolsim proxy at {origin} requires a key: use --key-env NAME, where NAME is the environment variable "
            "that contains the key"
        )
    return _Running(origin, backend)


def _is_backend(wanted: str, facts: Mapping[str, Any]) -> bool:
    """Return whether a running toolsim has the requested backend, according to its overview page."""
    if wanted in BUILTIN:
        return facts.get("backend") == BUILTIN[wanted].words
    if wanted.endswith(MODEL_SUFFIX):
        return facts.get("backend") == Path(wanted).name
    try:
        return _place(wanted) == _place(string(facts.get("backend_url")))
    except ValueError:
        return False


def _place(url: str) -> tuple[str, str, int, str]:
    """Return the parts of a base URL that identify a backend.

    Raises ValueError if the URL is not the base URL of a backend.
    """
    found = parse_url(url)
    host = "localhost" if is_loopback(found.host) else found.host
    return found.scheme, host, found.port, found.path or "/v1"


def _local_server(agent: Agent) -> str:
    """Return the base URL of the Ollama or LM Studio server on this machine. A server without models is skipped.

    Raises UsageError if neither server is running with a model.
    """
    is_empty = ""
    for title, port in LOCAL_SERVERS.values():
        url = f"http://127.0.0.1:{port}/v1"
        answer = _answer(url + MODELS)
        if answer is None or answer.status != 200 or answer.body is None:
            continue
        if _usable(_names(answer)):
            return url
        is_empty += f"; {title} is running, but has no model"
    titles = " or ".join(title for title, _ in LOCAL_SERVERS.values())
    raise UsageError(
        f"no backend found: no toolsim proxy is running, {settings_file()} does not name a backend, and no {titles} "
        f"server with a model answers{is_empty}. Specify one: toolsim launch {agent.command} http://127.0.0.1:11434/v1"
    )


def _answer(url: str, key: str = "", seconds: float = _FIND_SECONDS) -> Answer | None:
    try:
        return ask(url, key=key, seconds=seconds)
    except Unreachable:
        return None


def _names(answer: Answer) -> tuple[str, ...]:
    """Return the models' names from a server's list of models."""
    names = [string(model.get("id")) for model in mappings((answer.body or {}).get("data"))]
    return tuple(name for name in names if name)


def _usable(names: Sequence[str]) -> tuple[str, ...]:
    """Return the models whose names suggest that they generate text, because servers also list embedding models."""
    return tuple(name for name in names if "embed" not in name.lower())


# -- the proxy


def _serve(args: Namespace, backend: str, session: _Session) -> int:
    """Start a proxy, and run the program with it. Return the exit code.

    Raises UsageError if the proxy cannot be started, and LaunchError if the backend returns an error or the program
    cannot be run.
    """
    port = args.port
    if port is None:
        try:
            serve.check_free(args.host, DEFAULT_PORT, "")
            port = DEFAULT_PORT
        except UsageError:
            port = 0
    start = serve.Start(backend, args.host, port, args.web, (*_QUIET, *args.set))
    addon = _OnceListening(backend, session)
    code = serve.run(start, addon)
    if addon.problem is not None:
        raise addon.problem
    return code or addon.code


class _OnceListening:
    """An addon that runs the program once the proxy is listening, and then shuts down the proxy."""

    def __init__(self, backend: str, session: _Session) -> None:
        self._backend = backend
        self._session = session
        self._task: asyncio.Task[None] | None = None
        self.code = _INTERRUPTED
        """The program's exit code. Until the program ends, this is the exit code for an interruption."""
        self.problem: LaunchError | None = None

    def running(self) -> None:
        """Start the program in a task."""
        self._task = asyncio.get_running_loop().create_task(self._begin())

    def done(self) -> None:
        """Stop the program, because the proxy is stopping."""
        if self._task is not None:
            self._task.cancel()

    async def _begin(self) -> None:
        while not (listening := ctx.master.addons.get("proxyserver").listen_addrs()):  # type: ignore[no-untyped-call]
            await asyncio.sleep(_PAUSE)
        host, port, *_ = listening[0]
        words = BUILTIN[self._backend].words if self._backend in BUILTIN else self._backend
        if (store := parse_store_url(ctx.options.toolsim_store)) is not None:
            print(f"toolsim: {stored_line(store)}", file=sys.stderr)
        if not (key := ctx.options.toolsim_api_key).startswith(FILE):
            self._session.key = key or self._session.key
        try:
            self.code = await self._session.run(f"http://{url_host(host)}:{port}", words)
        except LaunchError as problem:
            self.problem = problem
        ctx.master.shutdown()  # type: ignore[no-untyped-call]


# -- the program


@dataclass(slots=True)
class _Session:
    """One run of a program."""

    agent: Agent
    arguments: Sequence[str]
    key: str
    """The API key that the program sends."""
    model: str
    """The model that the user requested, or "" for none."""

    async def run(self, origin: str, backend: str) -> int:
        """Run the program against the toolsim at ``origin``, and return the program's exit code.

        Raises LaunchError if the backend returns an error, or the program cannot be run.
        """
        names = await self._ask_models(origin)
        model = self.model or named_model(self.arguments) or next(iter(_usable(names)), "any")
        window = await asyncio.to_thread(context_window, f"{origin}/v1", model, key=self.key)
        endpoint = Endpoint(origin=origin, key=self.key, model=model, models=names, window=window)
        settings = self.agent.settings(endpoint, self.arguments)
        command = resolved([self.agent.command, *settings.arguments, *self.arguments])
        print(
            f"toolsim: {self.agent.title} over {backend or 'a toolsim proxy'}, model {printable(model, _MAX_CHARS)}; "
            f"turns: {origin}{OVERVIEW}",
            file=sys.stderr,
            flush=True,
        )
        return await run_program(command, settings.environment(os.environ))

    async def _ask_models(self, origin: str) -> tuple[str, ...]:
        """Return the backend's models. If a built-in backend is still starting, wait for it.

        Raises LaunchError if the backend returns an error.
        """
        end = asyncio.get_running_loop().time() + _MODELS_SECONDS
        while True:
            answer = await asyncio.to_thread(_answer, f"{origin}/v1{MODELS}", self.key, _MODELS_SECONDS)
            if answer is None or answer.status != 503 or asyncio.get_running_loop().time() > end:
                break
            await asyncio.sleep(_PAUSE)
        if answer is None or answer.status == 200:
            return () if answer is None else _names(answer)
        said = printable(answer.problem, _MAX_CHARS) or f"HTTP {answer.status}"
        if answer.status in (401, 403):
            raise LaunchError(
                f"the backend requires a key ({said}): use --key-env NAME, where NAME is the "
                "environment variable that contains the key"
            )
        if answer.status == 502:
            raise LaunchError(said)
        return ()


async def run_program(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program in the foreground, and pass on signals. Return the program's exit code.

    Raises LaunchError if the program cannot be started. If the task that runs this function is canceled, the program is
    stopped, too.
    """
    signals = _Signals()
    with signals.taken():
        try:
            child = await asyncio.create_subprocess_exec(*command, env=environment)
        except OSError as problem:
            raise LaunchError(f"cannot run {command[0]} ({problem.strerror})") from problem
        signals.pass_to(child)
        try:
            code = await child.wait()
        finally:
            if child.returncode is None:
                await _end(child)
    return 128 - code if code < 0 else code


async def _end(child: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        child.terminate()
    try:
        async with asyncio.timeout(_KILL_SECONDS):
            await child.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


@dataclass(slots=True)
class _Signals:
    """Passes signals that this process receives on to the running program."""

    _child: asyncio.subprocess.Process | None = None
    _pending: list[int] = field(default_factory=list)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Handle signals within the context, and restore the previous handlers afterwards."""
        names = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGBREAK")
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        loop = asyncio.get_running_loop()
        before: dict[int, Any] = {}
        for number in numbers:
            try:
                loop.add_signal_handler(number, self._receive, number)
            except NotImplementedError:
                # On Windows, Ctrl-C also reaches the program, so this process ignores it.
                before[number] = signal.signal(number, lambda *_: None)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def pass_to(self, child: asyncio.subprocess.Process) -> None:
        """Pass on signals to ``child``, including signals that arrived before the program started."""
        self._child = child
        for number in self._pending:
            self._send(number)

    def _receive(self, number: int) -> None:
        if self._child is None:
            self._pending.append(number)
        elif number not in (signal.SIGINT, getattr(signal, "SIGQUIT", None)) or not _is_in_foreground():
            self._send(number)

    def _send(self, number: int) -> None:
        if self._child is not None:
            with suppress(ProcessLookupError):
                self._child.send_signal(number)


def _is_in_foreground() -> bool:
    """Return whether this process's group is in the foreground, so that Ctrl-C also reaches the program."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
