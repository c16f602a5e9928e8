"""Reads a settings file, such as the one that ``toolsim serve --config toolsim.toml`` specifies.

    backend = "http://127.0.0.1:11434/v1"
    port = 8080
    toolsim_retry = 1
    toolsim_cors_origins = ["app://obsidian.md"]

The names in the file are arguments of the command (``backend``, ``host``, ``port``, ``web``) and options of toolsim and
mitmproxy. The command line overrides the file. Error messages contain the location: ``toolsim.toml:3: …``. mitmproxy
still reads its own config.yaml, which the settings file and the command line override.
"""

from __future__ import annotations

import tomllib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolsim.command_line import UsageError, nearest
from toolsim.proxy.legacy import RENAMED, current_value
from toolsim.proxy.options import profiles, table
from toolsim.proxy.options.option import PREFIX

_ARGUMENTS = {"backend": str, "host": str, "port": int, "web": bool}
# Minimum similarity for suggesting an argument instead of an unknown name. Valid mitmproxy options, such as web_port,
# are less similar to the arguments.
_CUTOFF = 0.75
_TYPES = {str: "a string", int: "a whole number", bool: "true or false"}


def with_config_file(words: Sequence[str], args: Namespace, file: Path) -> list[str]:
    """Return the arguments of a command line, preceded by the contents of a settings file.

    ``args`` contains the parsed arguments of the command line. A later argument overrides an earlier one, but values of
    ``--set`` accumulate, so options that are set on the command line are omitted from the file's contents. Raises
    UsageError, with the location of the problem, if the file is invalid or cannot be read.
    """
    values, text = _read(file)
    given = {pair.partition("=")[0] for pair in args.set}
    # In ``launch``, the name of a program follows the command.
    end = 1 + hasattr(args, "agent")
    own = list(words[end:])
    of_file: list[str] = []
    for name, value in values.items():
        try:
            if name not in _ARGUMENTS:
                of_file += [f"--set={name}={word}" for word in _option(name, value) if name not in given]
            elif name == "backend":
                # The commands for the built-in backends have no ``backend`` argument.
                if getattr(args, name, "") is None:
                    own.append(_argument(name, value))
            elif name == "web":
                of_file += ["--web"] if _argument(name, value) else []
            else:
                of_file.append(f"--{name}={_argument(name, value)}")
        except ValueError as problem:
            raise UsageError(f"{file}:{profiles.line_of(text, name)}: {name}: {problem}") from problem
    return [*words[:end], *of_file, *own]


def _read(file: Path) -> tuple[dict[str, Any], str]:
    try:
        text = file.read_text("utf-8")
        return tomllib.loads(text), text
    except OSError as problem:
        raise UsageError(f"--config: {file}: {problem.strerror}") from problem
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise UsageError(f"--config: {file} is not TOML: {problem}") from problem


def _argument(name: str, value: Any) -> Any:
    expected = _ARGUMENTS[name]
    # In Python, true is also an int, but it is not a valid port.
    if type(value) is not expected:
        raise ValueError(f"got {value!r}, expected {_TYPES[expected]}")
    return value


def _option(name: str, value: Any) -> list[str]:
    """Return an option's value as strings for the command line, with one string for each item of a list."""
    if isinstance(value, dict):
        raise ValueError("got a table, expected an option: move all options to the top level of the file")
    known = [*(option.full_name for option in table.OPTIONS), *(PREFIX + renamed for renamed in RENAMED)]
    if name.startswith(PREFIX) and name not in known:
        raise ValueError(f"no such option{nearest(name, known)}")
    # Options of mitmproxy are checked later, when its addons have defined all of them.
    if hint := nearest(name, _ARGUMENTS, cutoff=_CUTOFF):
        raise ValueError(f"no such option{hint}")
    for option in table.OPTIONS:
        if option.name == name:
            raise ValueError(f"no such option; did you mean {option.full_name}?")
        if option.full_name == name:
            value = option.from_yaml(current_value(name.removeprefix(PREFIX), value))
    match value:
        case bool():
            return ["true" if value else "false"]
        case list() | tuple():
            return [str(each) for each in value]
        case str() | int():
            return [str(value)]
    raise ValueError(f"got {value!r}, expected a string, a whole number, true or false, or a list of strings")
