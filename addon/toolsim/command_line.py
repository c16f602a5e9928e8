"""Parses command lines, with one-line errors that suggest the closest match, and finds the mitmproxy script."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from toolsim.installation import EXTRAS, install_command

EXIT_USAGE = 2
EXIT_PIPE = 141
"""The exit code if the reader of the output has exited, as after SIGPIPE (``toolsim replay flows | head``)."""


class UsageError(Exception):
    """Raised for an invalid command line. The message contains the reason in one line."""


def addon_script() -> str:
    """Return the path of the script for mitmproxy's ``-s`` option, which is next to this package.

    Raises UsageError if the script is missing.
    """
    script = Path(__file__).resolve().parents[1] / "toolsim.py"
    if not script.is_file():
        raise UsageError(f"the mitmproxy script {script} is missing: reinstall toolsim")
    return str(script)


def key_of(variable: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the API key in an environment variable, or "" if ``variable`` is empty.

    Raises UsageError if the variable is not set or its value is not a valid key.
    """
    if not variable:
        return ""
    if not (key := environment.get(variable, "").strip()):
        raise UsageError(f"--key-env: the environment variable {variable} is not set")
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"--key-env: {variable} contains characters that are invalid in a key")
    return key


def discard_output() -> None:
    """Discard buffered output after its reader has exited. Otherwise, Python would report a broken pipe at exit."""
    with open(os.devnull, "w") as nothing:
        for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
            try:
                stream.flush()
            except BrokenPipeError:
                os.dup2(nothing.fileno(), stream.fileno())


def resolved(command: Sequence[str]) -> list[str]:
    """Return a command with the path of its program, or the unchanged command if the program is not found.

    On Windows, this finds programs installed by npm, whose file names end in ``.cmd``.
    """
    program, *arguments = command
    return [shutil.which(program) or program, *arguments]


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with one-line errors and no abbreviated flags."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse the arguments.

        The subcommand that received an unknown argument reports it, with suggestions from the subcommand's flags.
        """
        parsed, surplus = self.parse_known_args(args, namespace)
        # Whether argparse includes the ``--`` separator depends on the Python version.
        if surplus := [word for word in surplus if word != "--"]:
            at_fault = self
            for word in args or ():
                at_fault = at_fault.commands.get(word, at_fault)
            at_fault.error(f"unrecognized arguments: {' '.join(surplus)}")
        return parsed

    @property
    def commands(self) -> dict[str, Parser]:
        """The parsers of the subcommands, by name."""
        found: dict[str, Parser] = {}
        for action in self._actions:
            if isinstance(action.choices, dict):
                found |= action.choices
        return found

    def error(self, message: str) -> NoReturn:
        """Print the error and exit."""
        self.exit(EXIT_USAGE, f"{self.prog}: {self.reworded(message)}\n")

    def reworded(self, message: str) -> str:
        """Return argparse's message in plainer words. For a mistyped name, suggest a similar name."""
        if found := re.match(r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)", message):
            known = [word.strip(" '") for word in found[3].split(",")]
            return (
                f"no such {found[1]}: {found[2]}{nearest(found[2], known) or f'; expected one of {", ".join(known)}'}"
            )
        if found := re.match(r"unrecognized arguments: (\S+)", message):
            return f"no such argument: {found[1]}{nearest(found[1].partition('=')[0], self.flags(), cutoff=0.7)}"
        if found := re.match(r"the following arguments are required: (.*)", message):
            return f"{found[1]} is missing; {self.prog} --help shows the usage"
        return message.removeprefix("argument ")

    def flags(self) -> list[str]:
        """Return the flags of this parser."""
        return [flag for action in self._actions for flag in action.option_strings]


def nearest(word: str, known: Iterable[str], prefix: str = "", cutoff: float = 0.6) -> str:
    """Return the suggestion "; did you mean …?" with the known word closest to a mistyped word, or "" if none is
    similar.

    ``prefix`` is added to the suggested word. ``cutoff`` is difflib's minimum similarity. It has to be higher for
    flags, because their dashes make all flags similar.
    """
    near = get_close_matches(word.lower(), list(known), n=1, cutoff=cutoff)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


# The requirements in pyproject.toml, except mitmproxy. If one of these packages is missing, all of them are suggested.
REQUIREMENTS = ("brotli>=1.2", "jsonschema>=4.24,<5", "regex>=2024.11.6", "zstandard>=0.25")


def missing(problem: ModuleNotFoundError) -> str:
    """Return a one-line message about a missing module, with the command that installs it."""
    package = (problem.name or "?").partition(".")[0]
    wanted: tuple[str, ...] = (package,)
    for requirements in (REQUIREMENTS, *EXTRAS.values()):
        if any(re.match(rf"{re.escape(package)}\b", requirement, re.IGNORECASE) for requirement in requirements):
            wanted = requirements
    return (
        f"toolsim requires the package {package}, which is not installed for {sys.executable}: "
        f"{install_command(wanted)}"
    )
