"""Reads the TOML file that the ``toolsim_models`` option names.

For each model that clients request, the file specifies the backend, the model's name at the backend, and the key::

    [[models]]
    names = ["haiku*", "claude-haiku-4-5"]
    url = "http://127.0.0.1:11434/v1"
    model = "qwen2.5-coder:1.5b"

    [[models]]
    names = "gpt-5*"
    url = "https://llm.example.com/v1"
    key = "env:LLM_KEY"

1. *Selection.* The first entry with a pattern that matches the model of a request applies. Patterns are case-sensitive.
2. *Invalid files* prevent startup, with a one-line message that names the file and line. If a file in use becomes
   invalid, a warning is logged once, and the previous version remains in use until the file is valid again.
3. *Keys* do not appear in any message.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from toolsim.command_line import nearest
from toolsim.proxy.address import Upstream, parse_url
from toolsim.proxy.options.reloaded_file import ReloadedFile

_TABLE = "models"
_ENTRIES = ("names", "url", "model", "key")
_FROM_ENVIRONMENT = "env:"
_WILDCARDS = re.compile(r"[*?\[]")
# Matches a key that contains no whitespace, and only characters that are valid in a header.
_KEY = re.compile(r"[\x21-\x7e]+")
_HEADER = re.compile(rf"^[ \t]*\[\[[ \t]*{_TABLE}[ \t]*\]\]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """An entry of the models file."""

    names: tuple[str, ...]
    """Case-sensitive patterns of model names, with the same wildcards as file globs."""
    upstream: Upstream
    """The backend that receives the requests for these models."""
    model: str = ""
    """The model's name at the backend, or "" if it is the name that the client sent."""
    key: str | None = field(default=None, repr=False)
    """The key for the backend, "" for no key, or None to keep the client's key."""

    def has(self, model: str) -> bool:
        """Return whether any pattern of the entry matches a model."""
        return any(fnmatchcase(model, pattern) for pattern in self.names)

    @property
    def literal_names(self) -> tuple[str, ...]:
        """The names that contain no wildcards."""
        return tuple(name for name in self.names if not _WILDCARDS.search(name))


def entry_for(entries: Sequence[ModelEntry], model: str) -> ModelEntry | None:
    """Return the first entry that matches a model, or None."""
    return next((entry for entry in entries if entry.has(model)), None)


class ModelsFile(ReloadedFile[tuple[ModelEntry, ...]]):
    """The models file, with the last valid version of its entries.

    ``environment`` contains the environment variables, from which keys can be read. Raises ValueError if the file is
    invalid. The message names the file and the line.
    """

    def __init__(self, file: Path, environment: Mapping[str, str]) -> None:
        super().__init__("toolsim_models", file, lambda file: read_entries(file, environment), names_line)

    def leads_to(self, host: str, port: int) -> bool:
        """Return whether the backend of any entry has this address."""
        return any((entry.upstream.host, entry.upstream.port) == (host, port) for entry in self.current())


def names_line(entries: Sequence[ModelEntry]) -> str:
    """Return the names and patterns of all entries as text, in order and separated by commas."""
    return ", ".join(name for entry in entries for name in entry.names)


def read_entries(file: Path, environment: Mapping[str, str]) -> tuple[ModelEntry, ...]:
    """Return the entries of a models file.

    Raises ValueError if the file is invalid. The message names the file and the line.
    """
    text = ""
    try:
        text = file.read_text("utf-8")
        return _entries(tomllib.loads(text), environment)
    except OSError as problem:
        raise ValueError(f"{file}: cannot be read: {problem.strerror}") from problem
    except _Wrong as wrong:
        raise ValueError(f"{file}:{_line(text, wrong)}: {wrong.entry}: {wrong}") from wrong
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        place = re.search(r"line (\d+)", str(problem))
        line = int(place[1]) if place else text.count("\n") + 1
        raise ValueError(f"{file}:{line}: not TOML: {problem}") from problem


class _Wrong(Exception):
    """A problem with ``entry`` in the table with the index ``number``.

    The index is -1 for a problem outside of all tables.
    """

    def __init__(self, number: int, entry: str, message: str) -> None:
        super().__init__(message)
        self.number = number
        self.entry = entry


def _entries(document: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[ModelEntry, ...]:
    if surplus := [name for name in document if name != _TABLE]:
        raise _Wrong(-1, surplus[0], f"unknown key{nearest(surplus[0], (_TABLE,))}; expected [[{_TABLE}]]")
    tables = document.get(_TABLE, [])
    if not (isinstance(tables, list) and tables and all(isinstance(table, dict) for table in tables)):
        raise _Wrong(-1, _TABLE, f"expected at least one table that begins with the line [[{_TABLE}]]")
    entries = tuple(_entry(number, table, environment) for number, table in enumerate(tables))
    for number, entry in enumerate(entries):
        for name in entry.names:
            for earlier in entries[:number]:
                if cover := next((pattern for pattern in earlier.names if _covers(pattern, name)), None):
                    raise _Wrong(
                        number,
                        "names",
                        f"{name!r} is unreachable, because {cover!r} in an earlier entry already matches it",
                    )
    return entries


def _entry(number: int, table: Mapping[str, Any], environment: Mapping[str, str]) -> ModelEntry:
    if surplus := [name for name in table if name not in _ENTRIES]:
        known = ", ".join(_ENTRIES)
        raise _Wrong(number, surplus[0], f"unknown key{nearest(surplus[0], _ENTRIES)}; expected one of {known}")
    names = table.get("names")
    names = [names] if isinstance(names, str) else names
    if not (isinstance(names, list) and names and all(isinstance(name, str) and name for name in names)):
        raise _Wrong(number, "names", f"got {names!r}, expected a list of names or patterns of names")
    url, model, key = table.get("url"), table.get("model", ""), table.get("key")
    if not isinstance(url, str):
        raise _Wrong(number, "url", f"got {url!r}, expected the backend's URL")
    try:
        upstream = parse_url(url)
    except ValueError as problem:
        raise _Wrong(number, "url", str(problem)) from problem
    if not isinstance(model, str) or ("model" in table and not model):
        raise _Wrong(number, "model", f"got {model!r}, expected the name that the backend uses for the model")
    if not isinstance(key, str | None):
        raise _Wrong(number, "key", "expected a string")
    return ModelEntry(tuple(names), upstream, model, _key(number, key, environment))


def _key(number: int, written: str | None, environment: Mapping[str, str]) -> str | None:
    if not written:
        return written
    key, what = written, "it"
    if written.startswith(_FROM_ENVIRONMENT):
        name = written.removeprefix(_FROM_ENVIRONMENT)
        key, what = environment.get(name, ""), f"the environment variable {name!r}"
        if not key:
            raise _Wrong(number, "key", f"{what} is not set")
    if not _KEY.fullmatch(key):
        raise _Wrong(
            number, "key", f"{what} has characters that are invalid in a header: expected ASCII without spaces"
        )
    return key


def _covers(earlier: str, later: str) -> bool:
    """Return whether the ``earlier`` pattern is certain to match every name that the ``later`` pattern matches.

    For example, ``gpt-*`` covers ``gpt-5*``. This is tested by matching the later pattern as if it were a name: a ``*``
    that matches the later pattern's wildcard also matches any text in its place. This does not work if the earlier
    pattern contains ``?`` or ``[``, so such a pattern covers only itself.
    """
    return earlier == later or (not re.search(r"[?\[]", earlier) and fnmatchcase(later, earlier))


def _line(text: str, wrong: _Wrong) -> int:
    """Return the line number of an entry, or of its table if the entry is missing."""
    headers = [found.start() for found in _HEADER.finditer(text)]
    start, end = 0, len(text)
    if 0 <= wrong.number < len(headers):
        start, end = headers[wrong.number], [*headers, end][wrong.number + 1]
    for name in (wrong.entry, _TABLE):
        if found := re.compile(rf"""^[ \t]*\[*[ \t]*["']?{re.escape(name)}\b""", re.MULTILINE).search(text, start, end):
            return text.count("\n", 0, found.start()) + 1
    return 1
