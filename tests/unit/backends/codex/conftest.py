"""Stand-ins for Codex's app-server. ``tests/codex`` uses the real program."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from toolsim.backends.codex.server import AppServer

ECHO = """
import json, os, sys, time
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message: continue
    method = message["method"]
    if method == "die": os._exit(7)
    if method == "shut": os.close(1); time.sleep(60)
    if method == "hang": continue
    print(json.dumps({"id": message["id"], "result": {"method": method, "pid": os.getpid()}}), flush=True)
"""


@pytest.fixture
def echo() -> str:
    """Return a Python program that answers each request with its method and the program's process ID. It exits on the
    method ``die``, closes its output on ``shut``, and does not answer ``hang``.
    """
    return ECHO


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[AppServer]]]:
    """Yield a function that starts an app-server from a Python program or a command. After the test, all servers are
    stopped.
    """
    started: list[AppServer] = []

    async def start(program: str = "", command: tuple[str, ...] = ()) -> AppServer:
        server = AppServer(command or (sys.executable, "-c", program))
        started.append(server)
        await server.start()
        return server

    yield start
    for server in started:
        await server.stop()
