"""Assignments that let mypy check that each optional module implements its protocol in the core.

The core imports these modules by name, which mypy cannot follow. This code is never executed.
"""

from __future__ import annotations

from collections.abc import Callable

from toolsim.backends import local, loopback
from toolsim.backends.codex import backend as codex
from toolsim.backends.scripted import backend as scripted
from toolsim.backends.text_backend import TextBackend
from toolsim.background import endpoints
from toolsim.mcp import engine
from toolsim.mcp.runtime import McpRuntime
from toolsim.proxy import background, builtin, upgrades
from toolsim.proxy.jobs import RunJob
from toolsim.proxy.options.settings import Settings
from toolsim.sockets import server
from toolsim.stores import redis_server, sqlite
from toolsim.stores.record import Store, StoreLimits

BACKENDS: list[Callable[[Settings], TextBackend]] = [
    codex.backend_of,
    local.backend_of,
    scripted.backend_of,
]
LOOPBACK: Callable[[TextBackend], builtin.Loopback] = loopback.Loopback
SOCKETS: Callable[[Callable[[], bool], RunJob], upgrades.SocketServer] = server.SocketServer
BACKGROUND: Callable[[background.Parts], background.Answers] = endpoints.BackgroundAnswers
MCP: McpRuntime = engine
STORES: list[Callable[[str, StoreLimits], Store]] = [sqlite.open_store, redis_server.open_store]
