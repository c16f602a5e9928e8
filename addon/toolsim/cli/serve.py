"""Starts mitmdump or mitmweb with the addon, in this process.

This module builds an ordinary command line: ``mitmdump -s …/toolsim.py --mode reverse:…``. In addition, it reports user
errors in one line before mitmproxy starts, and suppresses mitmproxy's own startup messages, because toolsim's startup
banner contains the same information.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from mitmproxy import ctx
from mitmproxy.master import Master
from mitmproxy.options import CONF_BASENAME, CONF_DIR, Options
from mitmproxy.tools import cmdline, main
from mitmproxy.tools.dump import DumpMaster
from mitmproxy.tools.web.master import WebMaster

from toolsim.cli.arguments import MODEL_SUFFIX, check_known, check_settings, is_named
from toolsim.command_line import EXIT_PIPE, UsageError, addon_script, discard_output
from toolsim.proxy.address import parse_url, url_host
from toolsim.proxy.options.settings import folder_problem

# Loggers that are limited to warnings. Their other messages repeat the startup banner, or are irrelevant to users who
# did not type the mitmproxy command themselves.
_TALKERS = ("mitmproxy.addons.script", "mitmproxy.proxy.mode_servers", "toolsim.proxy.builtin")
WEB_PORT = 8081


@dataclass(frozen=True, slots=True)
class Start:
    """The startup parameters of a proxy."""

    backend: str
    """The backend: ``codex``, ``scripted``, a URL, a model file, or "" for none."""
    host: str = "127.0.0.1"
    port: int = 8080
    web: bool = False
    settings: tuple[str, ...] = ()
    """Settings of the form ``NAME=VALUE``."""
    remembers: bool = True
    """Whether answers are stored in the user's state folder, unless the settings specify a store."""


def arguments(start: Start) -> list[str]:
    """Return the command-line arguments for mitmdump or mitmweb."""
    words = ["-s", addon_script(), "--listen-host", start.host, "--listen-port", str(start.port)]
    settings = list(start.settings)
    if is_named(start.backend):
        settings.insert(0, f"toolsim_backend={start.backend}")
    elif start.backend.endswith(MODEL_SUFFIX):
        settings[:0] = ["toolsim_backend=local", f"toolsim_model={start.backend}"]
    elif start.backend:
        target = parse_url(start.backend)
        words += ["--mode", f"reverse:{target.scheme}://{url_host(target.host)}:{target.port}"]
        if target.path and not any(given.startswith("toolsim_upstream=") for given in settings):
            settings.insert(0, f"toolsim_upstream={start.backend}")
    if start.remembers and not any(given.startswith("toolsim_store=") for given in settings):
        if problem := _folder_problem(folder := state_folder()):
            print(f"toolsim: cannot store conversations in {folder}: {problem}", file=sys.stderr)
        else:
            settings.append(f"toolsim_store=sqlite:{folder / 'answers.sqlite'}")
    for given in settings:
        words += ["--set", given]
    return words


def state_folder() -> Path:
    """Return the user's state folder for toolsim."""
    local = os.environ.get("LOCALAPPDATA", "") if os.name == "nt" else ""
    return Path(os.environ.get("XDG_STATE_HOME") or local or Path.home() / ".local" / "state") / "toolsim"


def run(start: Start, *addons: object) -> int:
    """Run the proxy, with additional ``addons``, until a signal arrives. Return the exit code.

    Raises UsageError if a setting is invalid, or a port cannot be used.
    """
    words = arguments(start)
    check_settings([*words[words.index("--set") + 1 :: 2]] if "--set" in words else [], host=start.host)
    _check_confdir(start.settings)
    check_free(start.host, start.port, "--port ")
    if start.web:
        check_free("127.0.0.1", _web_port(start.settings), "--set web_port=")
    if not {"toolsim_log=off", "termlog_verbosity=debug"} & set(start.settings):
        for name in _TALKERS:
            logging.getLogger(name).setLevel(logging.WARNING)
    base = WebMaster if start.web else DumpMaster

    class Started(base):  # type: ignore[misc, valid-type]
        """A mitmproxy master that checks the option names in the settings once mitmproxy has defined its options."""

        def __init__(self, options: Options) -> None:
            super().__init__(options)
            check_known(options, start.settings)
            self.addons.add(*addons)

    make_parser = cmdline.mitmweb if start.web else cmdline.mitmdump
    master: type[Master] = Started
    output = _Output(sys.stdout)
    try:
        with redirect_stdout(cast(TextIO, output)):
            main.run(master, make_parser, words)
    except OSError as problem:
        raise UsageError(str(problem.strerror or problem).splitlines()[0]) from problem
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return EXIT_PIPE if output.has_no_reader else 0


def _folder_problem(folder: Path) -> str:
    """Create a folder if it does not exist. Return the reason why it is not writable, or "" if it is writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        return str(problem.strerror)
    return folder_problem(folder)


def _check_confdir(settings: Sequence[str]) -> None:
    """Raise UsageError if mitmproxy has no certificates and could not write them."""
    values = [given.partition("=")[2] for given in settings if given.startswith("confdir=")]
    folder = Path(values[-1] if values else CONF_DIR).expanduser()
    if not (folder / f"{CONF_BASENAME}-ca.pem").exists() and (problem := _folder_problem(folder)):
        raise UsageError(
            f"mitmproxy cannot write its certificates to {folder}: {problem}; set another folder with --set "
            "confdir=FOLDER"
        )


class _Output:
    """mitmproxy's output stream. If the reader closes the stream, the proxy is shut down.

    For example, ``head`` in ``toolsim demo | head`` closes the stream, and mitmproxy itself would print a traceback.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.has_no_reader = False
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped stream."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, and shut down the proxy if the reader has closed the stream."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._end()
            return len(text)

    def flush(self) -> None:
        """Flush the stream, and shut down the proxy if the reader has closed it."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._end()

    def _end(self) -> None:
        discard_output()
        if not self.has_no_reader:
            self.has_no_reader = True
            ctx.master.shutdown()  # type: ignore[no-untyped-call]


def check_free(host: str, port: int, remedy: str) -> None:
    """Raise UsageError if the address cannot be bound.

    ``remedy`` is the argument that selects another port, without the number, such as ``--port``.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as problem:
        reason = (problem.strerror or str(problem)).partition(" (")[0]
        is_port = problem.errno in (errno.EADDRINUSE, errno.EACCES) and port < 65535
        other = f"; use another port: {remedy}{max(port + 1, 8080)}" if is_port else ""
        raise UsageError(f"cannot listen on {host}:{port} ({reason}){other}") from problem


def _web_port(settings: Sequence[str]) -> int:
    given = [setting.partition("=")[2] for setting in settings if setting.startswith("web_port=")]
    return int(given[-1]) if given and given[-1].isdigit() else WEB_PORT
