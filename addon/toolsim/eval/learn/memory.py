"""Stores the verdict on each answer in a file, so that an interrupted run can be continued.

For each answer, a JSON line is appended and flushed. The first line identifies the server, the model, its engine, the
questions and toolsim's version. If any of these differ, the file is replaced. The file contains no questions, answer
texts or keys. It is locked while open, so that only one run at a time uses it. A complete run deletes the file.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

from toolsim.eval.learn.decisions import Setting


class Busy(Exception):
    """Raised if another process is tuning the same model."""


@dataclass(slots=True)
class Spent:
    """The requests, tokens, seconds and answers so far, including the interrupted runs that this run continues."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    answers: int = 0


class VerdictFile:
    """A file of verdicts on answers. Raises Busy or OSError if the file cannot be locked or opened."""

    def __init__(self, folder: Path, about: Mapping[str, str]) -> None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", about["model"])[:80]
        which = sha256(f"{about['url']} {about['model']}".encode()).hexdigest()[:8]
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}-{which}.jsonl"
        self._lock_path = self._path.with_suffix(".lock")
        self._lock = _locked(self._lock_path)
        self._file: TextIO = self._path.open("a+", encoding="utf-8")
        self._known: dict[tuple[str, str], bool] = {}
        self.spent = Spent()
        self._read(dict(about))

    def _read(self, about: Mapping[str, str]) -> None:
        self._file.seek(0)
        entries = []
        for line in self._file:
            try:
                entries.append(json.loads(line))
            except ValueError:  # This line was truncated when an earlier run was killed.
                break
        if not entries or entries[0] != about:
            entries = [about]
        self._file.seek(0)
        self._file.truncate()
        for entry in entries:
            self._write(entry)
        for entry in entries[1:]:
            self._take(entry)

    def _take(self, entry: Mapping[str, Any]) -> None:
        if "right" in entry:
            self._known[entry["setting"], entry["question"]] = entry["right"]
            self.spent.answers += 1
        for name in ("requests", "input_tokens", "output_tokens", "seconds"):
            setattr(self.spent, name, getattr(self.spent, name) + entry.get(name, 0))

    def forget(self) -> None:
        """Discard all stored verdicts."""
        self._file.seek(0)
        about = json.loads(self._file.readline())
        self._known, self.spent = {}, Spent()
        self._file.truncate(0)
        self._write(about)

    def answer(self, setting: Setting, question: str) -> bool | None:
        """Return whether the answer to a question was correct, or None if no verdict is stored."""
        return self._known.get((str(setting), question))

    def add(self, setting: Setting, question: str, right: bool, **spent: float) -> None:
        """Record the verdict on an answer."""
        self._add({"setting": str(setting), "question": question, "right": right, **spent})

    def add_requests(self, requests: int) -> None:
        """Add ``requests`` to the number of requests that were sent to the backend."""
        self._add({"requests": requests})

    def _add(self, entry: Mapping[str, Any]) -> None:
        self._take(entry)
        self._write(entry)

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self, *, is_whole: bool = False) -> None:
        """Close the file. If ``is_whole`` is true, the run is complete, so the file is deleted."""
        self._file.close()
        if is_whole:
            self._path.unlink(missing_ok=True)
        with suppress(OSError):  # Windows cannot delete a file that a process has open.
            self._lock_path.unlink()
        self._lock.close()


def _locked(path: Path) -> sqlite3.Connection:
    """Return a lock that is held until it is closed or this process ends. Raises Busy if another process holds it."""
    # SQLite locks files in the same way on every system.
    lock = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        lock.close()
        raise Busy(str(path)) from None
    return lock
