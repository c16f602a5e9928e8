"""A mitmproxy script that makes one function of toolsim raise an exception once, at a test's command.

It listens on 127.0.0.1, at the port in ``FAULTS_PORT``. Each line it receives is a JSON command, and it answers with a
line of JSON:

- ``{"do": "record"}``: start recording which functions are called.
- ``{"do": "functions"}``: stop recording, and return the names of the functions.
- ``{"do": "arm", "name": NAME, "error": "KeyError"}``: make the function raise this exception on its next call.
- ``{"do": "state"}``: disarm the function. Return whether it raised the exception, and the work in progress.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path
from types import CodeType
from typing import Any

import toolsim
from mitmproxy import ctx
from toolsim.proxy import rounds, upgrades
from toolsim.proxy.addon import ToolSim

ERRORS: dict[str, type[Exception]] = {
    error.__name__: error for error in (RuntimeError, KeyError, MemoryError, RecursionError)
}
_FOLDER = f"{Path(toolsim.__file__).parent}{os.sep}"
_EVENTS = sys.monitoring.events
_TOOL = 4


class Faults:
    """Records which functions are called, and makes one function fail."""

    def __init__(self) -> None:
        self.entered: dict[str, CodeType] = {}
        self.armed: CodeType | None = None
        self.error: type[Exception] = RuntimeError
        self.is_recording = False

    def start(self) -> None:
        sys.monitoring.use_tool_id(_TOOL, "faults")
        sys.monitoring.register_callback(_TOOL, _EVENTS.PY_START, self._start)

    def record(self) -> None:
        self.entered, self.is_recording = {}, True
        sys.monitoring.restart_events()
        sys.monitoring.set_events(_TOOL, _EVENTS.PY_START)

    def functions(self) -> list[str]:
        self.is_recording = False
        sys.monitoring.set_events(_TOOL, 0)
        return sorted(self.entered)

    def arm(self, name: str, error: str) -> None:
        self.error, self.armed = ERRORS[error], self.entered[name]
        sys.monitoring.set_local_events(_TOOL, self.armed, _EVENTS.PY_START)
        sys.monitoring.restart_events()

    def disarm(self) -> bool:
        """Disarm the function, and return whether it raised its exception."""
        code, self.armed = self.armed, None
        if code is not None:
            sys.monitoring.set_local_events(_TOOL, code, 0)
        return code is None

    def _start(self, code: CodeType, _: int) -> object:
        if self.is_recording:
            if code.co_filename.startswith(_FOLDER) and code.co_name != "<module>":
                where = code.co_filename.removeprefix(_FOLDER)
                self.entered.setdefault(f"{where}:{code.co_qualname}:{code.co_firstlineno}", code)
            return sys.monitoring.DISABLE
        if code is self.armed:
            self.armed = None
            sys.monitoring.set_local_events(_TOOL, code, 0)
            raise self.error("injected")
        return None


def in_flight() -> dict[str, int]:
    """Return the number of exchanges, answers, rounds, WebSocket requests and WebSocket connections in progress."""
    drain: Any = ctx.master.addons.get("drain")
    server = drain._sockets._server
    return {
        "exchanges": len(ToolSim.exchanges),
        "answers": drain.open(),
        "rounds": len(rounds._ASKED),
        "requests": len(upgrades._POSTS),
        "connections": len(server.handlers) if server else 0,
    }


def serve(faults: Faults, listener: socket.socket) -> None:
    """Execute the commands from one connection at a time."""
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                command = json.loads(line)
                answer: object = None
                match command["do"]:
                    case "record":
                        faults.record()
                    case "functions":
                        answer = faults.functions()
                    case "arm":
                        faults.arm(command["name"], command["error"])
                    case "state":
                        answer = {"fired": faults.disarm(), "open": in_flight()}
                lines.write(json.dumps(answer) + "\n")
                lines.flush()


def load(_: object) -> None:
    """Start listening for commands."""
    faults = Faults()
    faults.start()
    listener = socket.create_server(("127.0.0.1", int(os.environ["FAULTS_PORT"])))
    threading.Thread(target=serve, args=(faults, listener), daemon=True).start()
