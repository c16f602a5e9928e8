"""Checks command-line arguments, including options, before mitmproxy sees them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from mitmproxy.options import Options

from toolsim.command_line import UsageError, nearest
from toolsim.plugins import BUILTIN
from toolsim.proxy import startup
from toolsim.proxy.address import parse_url
from toolsim.proxy.options import table
from toolsim.proxy.options.option import PREFIX

_ENDPOINT = re.compile(r"/(?:chat/completions|completions|responses|messages|models)/?$")
_OLLAMA_API = re.compile(r"/api/(?:chat|generate|tags|show)/?$")
MODEL_SUFFIX = ".gguf"
"""The file name suffix that identifies a model file."""
DEFAULT_PORT = 8080
"""The default port of toolsim."""
_OLLAMA_PORT = 11434
LOCAL_SERVERS = {"ollama": ("Ollama", _OLLAMA_PORT), "lmstudio": ("LM Studio", 1234)}
"""Maps the short names of servers that usually run on the user's own machine to their full names and default ports."""
_PORTS = {"vllm": 8000, **{name: port for name, (_, port) in LOCAL_SERVERS.items()}}
_COMMANDS_OF_OTHERS = ("codex", "demo", "scripted")


# -- argument types; argparse prints their errors as "argument NAME: …"


def backend_url(text: str) -> str:
    """Return ``text`` if it is the base URL of a backend. Otherwise, raise ArgumentTypeError."""
    if text.lower() in _COMMANDS_OF_OTHERS:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a URL; did you mean toolsim {command_for(text)}?")
    if port := _PORTS.get(text.lower()):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a URL; did you mean http://127.0.0.1:{port}/v1?")
    try:
        backend = parse_url(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    # Ollama answers on both /api and /v1, but only /v1 has the API that toolsim supports. On other servers, /api may be
    # correct.
    found = _OLLAMA_API.search(text)
    if found or (backend.port, backend.path) == (_OLLAMA_PORT, "/api"):
        raise argparse.ArgumentTypeError(
            f"got {text!r}, which is Ollama's native API, expected its OpenAI-compatible API; did you mean "
            f"{text.rstrip('/').rpartition('/api')[0]}/v1?"
        )
    if found := _ENDPOINT.search(text):
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected a base URL, without {found[0]}; did you mean {text[: found.start()]}?"
        )
    return text


def is_named(backend: str) -> bool:
    """Return whether the argument is the name of a built-in backend.

    The name ``local`` does not count, because users specify a model file instead.
    """
    return backend in BUILTIN and backend != "local"


def served_backend(text: str) -> str:
    """Return ``text`` if it is a base URL, a model file or a backend's name. Otherwise, raise ArgumentTypeError."""
    if is_named(text) and text not in _COMMANDS_OF_OTHERS:
        return text
    if not text.endswith(MODEL_SUFFIX):
        return backend_url(text)
    if not Path(text).expanduser().is_file():
        raise argparse.ArgumentTypeError(f"the model file {text!r} does not exist")
    return text


def command_for(backend: str) -> str:
    """Return the command that serves a built-in backend."""
    return "codex" if backend.lower() == "codex" else "demo"


def recorded_backend(text: str) -> str:
    """Return ``text`` if it is a backend that can be recorded: codex, scripted, or any backend for ``serve``.

    Otherwise, raise ArgumentTypeError.
    """
    return text if is_named(text) else served_backend(text)


def port(text: str) -> int:
    """Return a port number, where 0 stands for any free port.

    Raises ArgumentTypeError if ``text`` is not a number from 0 to 65535.
    """
    if not re.fullmatch(r"\d{1,5}", text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a port number from 0 to 65535")
    return int(text)


def setting(text: str) -> str:
    """Return ``text`` if it is a ``NAME=VALUE`` setting for mitmproxy or toolsim, or raise ArgumentTypeError."""
    name, sign, _ = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=VALUE")
    ours = [option.name for option in table.OPTIONS]
    if name in ours:
        raise argparse.ArgumentTypeError(f"{name}: no such option; did you mean {PREFIX}{name}?")
    return text


# -- checks of options before mitmproxy sees them


def check_settings(given: Iterable[str], *, host: str) -> None:
    """Raise UsageError for the first invalid toolsim option. ``host`` is the address on which the proxy will listen."""
    manager = Options()
    manager.update(listen_host=host)  # type: ignore[no-untyped-call]
    try:
        manager.set(*given, defer=True)
    except Exception as problem:
        raise UsageError(str(problem)) from problem
    table.register(manager, {})
    if problems := startup.take_problems(manager):
        raise UsageError(problems[0])


def check_known(manager: Options, given: Iterable[str]) -> None:
    """Raise UsageError for the first unknown option name, or the first value that a mitmproxy option rejects.

    ``manager`` contains the options of mitmproxy and its own addons, but not toolsim's options.
    """
    for pair in given:
        name = pair.partition("=")[0]
        if name.startswith(PREFIX):
            continue
        if name not in manager:
            known = [*manager.keys(), *(option.full_name for option in table.OPTIONS)]  # type: ignore[no-untyped-call]
            raise UsageError(f"{name}: no such option{nearest(name, known)}")
        try:
            manager.set(pair)
        except Exception as problem:
            raise UsageError(str(problem)) from problem
