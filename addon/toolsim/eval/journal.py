"""Writes the report folder, which contains the evaluation's settings and one line for each finished run.

When a run ends, a line is appended to ``runs.jsonl`` and flushed. If a crash truncates a line, this line is dropped and
its run is repeated when the evaluation is resumed. Known secrets are never written to a file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from toolsim.command_line import UsageError
from toolsim.eval.case import Run

RUNS = "runs.jsonl"
SETTINGS = "settings.json"
MASK = "[key]"

# Minimum length of a secret that is masked. A shorter one could match ordinary words, and no real key is that short.
_MIN_SECRET = 6
# Models can write half of a surrogate pair, which UTF-8 cannot encode. It is replaced with its JSON escape.
_ERRORS = "backslashreplace"


class Secrets:
    """Replaces known secrets in text that is about to be written."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        self._secrets = sorted((form for form in forms if len(form) >= _MIN_SECRET), key=len, reverse=True)

    def mask(self, text: str) -> str:
        """Return the text with each secret replaced."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text


def _forms(secret: str) -> tuple[str, ...]:
    return secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]


class Journal:
    """The report folder of a running evaluation."""

    def __init__(self, folder: Path, secrets: Secrets) -> None:
        self.folder = folder
        self._secrets = secrets
        self.runs: list[Run] = []
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / RUNS
        if path.exists():
            kept = list(_whole_lines(path))
            self.runs = [run for _, run in kept]
            path.write_text("".join(f"{line}\n" for line, _ in kept), encoding="utf-8", errors=_ERRORS)
        self._file = path.open("a", encoding="utf-8", errors=_ERRORS)

    def add(self, run: Run) -> Run:
        """Write a finished run to the file, and return it with secrets masked, as it was written."""
        line = self._secrets.mask(json.dumps(run.as_dict(), ensure_ascii=False, default=str))
        self._file.write(f"{line}\n")
        self._file.flush()
        written = Run.from_dict(json.loads(line))
        self.runs.append(written)
        return written

    def write(self, name: str, text: str) -> Path:
        """Write another file of the report atomically."""
        path = self.folder / name
        part = path.with_name(f".{name}.part")
        part.write_text(self._secrets.mask(text), encoding="utf-8", errors=_ERRORS)
        part.replace(path)
        return path

    def close(self) -> None:
        """Close ``runs.jsonl``."""
        self._file.close()


def stamp(now: datetime) -> str:
    """Return the name of a report folder, such as ``20260207T123628Z``. ``now`` is the time in UTC."""
    return now.strftime("%Y%m%dT%H%M%SZ")


def new_folder(out: Path, now: datetime) -> Path:
    """Return the path of a new folder in ``out``. If a folder with the same time stamp exists, a number is appended."""
    folder, number = out / stamp(now), 1
    while folder.exists():
        number += 1
        folder = out / f"{stamp(now)}-{number}"
    return folder


def latest(out: Path) -> Path:
    """Return the newest report folder in ``out``. Raises UsageError if ``out`` contains none."""
    folders = [folder for folder in out.glob("*Z*") if (folder / SETTINGS).is_file()] if out.is_dir() else []
    if not folders:
        raise UsageError(f"no report to resume in {out}")
    return max(folders, key=lambda folder: folder.name)


def read_settings(folder: Path) -> Mapping[str, Any]:
    """Return the settings of a report. Raises UsageError if they are missing or invalid."""
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise UsageError(f"{folder} is not a report folder: {problem}") from problem
    if not isinstance(settings, dict):
        raise UsageError(f"{folder / SETTINGS} is not a JSON object")
    return settings


def read_runs(folder: Path) -> list[Run]:
    """Return the finished runs of a report. Raises UsageError if the folder does not contain a report."""
    path = folder / RUNS
    if not path.is_file():
        raise UsageError(f"{folder} is not a report folder: it does not contain {RUNS}")
    return [run for _, run in _whole_lines(path)]


def _whole_lines(path: Path) -> Iterator[tuple[str, Run]]:
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            yield line, Run.from_dict(json.loads(line))
        except (ValueError, TypeError, KeyError):
            continue
