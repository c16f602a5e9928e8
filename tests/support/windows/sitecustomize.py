"""Simulates Windows in all Python processes whose ``PYTHONPATH`` contains this folder.

The interpreter imports this module at startup. It removes features that Windows lacks: Unix modules, signals, functions
of ``os``, and the event loop's signal handlers. Objects that the standard library has already imported remain
available. Paths, file locking and the way programs are started are not simulated.
"""

import asyncio
import importlib.abc
import multiprocessing  # noqa: F401  (it keeps its own references)
import os
import signal
import socket
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
from concurrent import futures  # noqa: F401

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")


class _Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return


def _no_signal_handler(self, *_):
    raise NotImplementedError


for _name in MODULES:
    sys.modules.pop(_name, None)
sys.meta_path.insert(0, _Missing())
for _name in ("SIGALRM", "SIGHUP", "SIGCHLD", "SIGPROF", "setitimer", "alarm", "ITIMER_PROF"):
    if hasattr(signal, _name):
        delattr(signal, _name)
for _name in ("nice", "killpg", "setsid", "getpgid", "posix_spawnp", "getuid", "geteuid", "fork"):
    if hasattr(os, _name):
        delattr(os, _name)
if hasattr(socket, "TCP_NOTSENT_LOWAT"):
    del socket.TCP_NOTSENT_LOWAT
for _loop in {asyncio.SelectorEventLoop, asyncio.BaseEventLoop}:
    _loop.add_signal_handler = _no_signal_handler
