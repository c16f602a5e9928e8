"""Each guest beside what the house calls it by, for mypy: it cannot follow an import by name. Nothing here is run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from toolsimbackends import local, loopback
from toolsimbackends.codex import backend as codex
from toolsimbackends.scripted import backend as scripted
from toolsimbackground import edge
from toolsimlib.hosted.engine import Engine
from toolsimlib.proxy import background, builtin, upgrades
from toolsimlib.proxy.jobs import Done, Job
from toolsimlib.proxy.options.settings import Settings
from toolsimlib.store.record import Bounds, Store
from toolsimmcp import engine
from toolsimsockets import server
from toolsimstores import redis_server, sqlite

BACKENDS: list[Callable[[Settings], loopback.TextBackend]] = [
    codex.backend_of,
    local.backend_of,
    scripted.backend_of,
]
LOOPBACK: Callable[[loopback.TextBackend], builtin.Loopback] = loopback.Loopback
SOCKETS: Callable[[Callable[[], bool], Callable[[Job], Awaitable[Done]]], upgrades.SocketServer] = server.SocketServer
BACKGROUND: Callable[[background.Parts], background.Answers] = edge.BackgroundAnswers
MCP: Engine = engine
STORES: list[Callable[[str, Bounds], Store]] = [sqlite.open_store, redis_server.open_store]
