"""An operator's file that is reloaded when it changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)


class ReloadedFile[T]:
    """The last valid version of a file's contents.

    Raises ValueError if the first version is invalid. The message names the file and the line. If a new version is
    invalid or the file is missing, a warning is logged once, and the previous version remains in use until the file is
    valid again. ``option`` is the option that names the file. ``read`` parses the file or raises ValueError, and
    ``describe`` returns the description of a new version for the log.
    """

    def __init__(self, option: str, file: Path, read: Callable[[Path], T], describe: Callable[[T], str]) -> None:
        self.file = file
        self._option = option
        self._read = read
        self._describe = describe
        self._stamp = _stamp(file)
        self._current = read(file)
        self._problem = ""
        """The problem that was logged for the file's current version, or "" if the current version is valid."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.file)!r})"

    def current(self) -> T:
        """Return the contents of the file. If the file has changed, reload it first."""
        stamp = _stamp(self.file)
        if stamp == self._stamp:
            return self._current
        # The stamp is from before the file is read. So if the file changes meanwhile, it is read again next time.
        self._stamp = stamp
        try:
            self._current = self._read(self.file)
        except ValueError as problem:
            if str(problem) != self._problem:
                self._problem = str(problem)
                logger.warning("%s: %s; the previous version stays in use", self._option, problem)
        else:
            self._problem = ""
            logger.info("%s: reloaded %s: %s", self._option, self.file, self._describe(self._current))
        return self._current


def _stamp(file: Path) -> tuple[int, ...] | None:
    """Return values that change whenever the file changes, or None if the file does not exist."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
