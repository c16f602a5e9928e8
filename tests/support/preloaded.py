"""Runs ``mitmdump`` as a fork of a process that has imported it and the addon, since imports dominate the startup time.

It is the same program with the same arguments, in a separate process. Tests that measure the startup, its time or its
memory run a command instead.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

# Only installed modules can be preloaded, because the fork server imports them before it knows the path of the tests.
_IMPORTED = (
    "cryptography.hazmat.backends.openssl.backend",
    "encodings.idna",
    "jsonschema",
    "mcp",
    "mitmproxy.tools.dump",
    "mitmproxy.tools.main",
    "regex",
    "toolsim.backends.scripted.backend",
    "toolsim.background",
    "toolsim.otel.start",
    "toolsim.otel.tracing",
    "toolsim.pages.commands",
    "toolsim.proxy.addon",
    "toolsim.proxy.paced_client",
    "toolsim.recordings.capture",
    "toolsim.recordings.commands",
    "toolsim.recordings.server_replay",
    "toolsim.rounds.server",
    "toolsim.schema.build",
    "toolsim.sockets.server",
    "toolsim.stores.sqlite",
    "tornado.simple_httpclient",
    "tornado.web",
)
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(_IMPORTED))


def start(arguments: Sequence[str], log: Path, cwd: Path, environment: Mapping[str, str]) -> BaseProcess:
    """Start ``mitmdump`` with these arguments, and write its output to ``log``."""
    process = _CONTEXT.Process(target=_mitmdump, args=(list(arguments), log, cwd, dict(environment)), daemon=True)
    process.start()
    return process


def _mitmdump(arguments: list[str], log: Path, cwd: Path, environment: dict[str, str]) -> None:
    from mitmproxy.tools.main import mitmdump

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
    for target, source in enumerate((nothing, output, output)):
        os.dup2(source, target)
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.argv[1:] = arguments
    # The inherited objects are excluded from garbage collection, because visiting them would copy their memory.
    gc.freeze()
    mitmdump(arguments)
