"""A file of the operator that is read again when it changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)


class ReloadedFile[T]:
    """The last valid version of a file's contents. Raises ValueError, with file and line, for an invalid first version.

    An invalid new version, or none, changes nothing: the log says so once, and the previous version stays in use until
    the file is valid again. ``option``: the option that names the file; ``read``: reads it, or raises ValueError;
    ``describe``: the words of the log for a new version.
    """

    def __init__(self, option: str, file: Path, read: Callable[[Path], T], describe: Callable[[T], str]) -> None:
        self.file = file
        self._option = option
        self._read = read
        self._describe = describe
        self._stamp = _stamp(file)
        self._current = read(file)
        self._problem = ""
        """What the log says about the current version; "" if it is valid."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.file)!r})"

    def current(self) -> T:
        """Return the contents; a file that has changed is read again."""
        stamp = _stamp(self.file)
        if stamp == self._stamp:
            return self._current
        # Before it is read: a change in between is another one.
        self._stamp = stamp
        try:
            self._current = self._read(self.file)
        except ValueError as problem:
            if str(problem) != self._problem:
                self._problem = str(problem)
                logger.warning("%s: %s; the previous version stays in use", self._option, problem)
        else:
            self._problem = ""
            logger.info("%s: %s was read again: %s", self._option, self.file, self._describe(self._current))
        return self._current


def _stamp(file: Path) -> tuple[int, ...] | None:
    """Return what changes when a file does, None if there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
