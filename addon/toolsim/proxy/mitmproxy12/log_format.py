"""The format of log lines in the terminal.

mitmproxy's own format starts each line with the time in brackets. If a line contains a character that the terminal's
encoding cannot represent, mitmproxy raises an exception in the code that logged the line.

Relies on these internals of mitmproxy 12.2: its ``termlog`` addon writes with a ``TermLogHandler``, a handler of the
root logger whose ``file`` and ``has_vt_codes`` describe the terminal. The handler is removed once all addons are done,
while connections are still closing. Python would then write warnings without time and level, which ``keep_format``
prevents.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mitmproxy.addons.termlog import TermLogHandler
from mitmproxy.log import MitmFormatter


class TextFormatter(MitmFormatter):
    """mitmproxy's log format, limited to characters that the terminal's encoding can represent."""

    def __init__(self, handler: TermLogHandler) -> None:
        super().__init__(handler.has_vt_codes)
        self._encoding = getattr(handler.file, "encoding", None) or "utf-8"

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record as a line."""
        line: str = super().format(record)
        return line.encode(self._encoding, "backslashreplace").decode(self._encoding)


def set_format(make: Callable[[TermLogHandler], logging.Formatter]) -> None:
    """Set the formatter of the terminal's log handler. ``make`` creates the formatter for the handler."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, TermLogHandler):
            handler.setFormatter(make(handler))


class _Last(logging.Handler):
    """A log handler that passes records to the handler ``first`` after mitmproxy has removed ``first``."""

    def __init__(self, first: TermLogHandler) -> None:
        super().__init__(first.level)
        self._first = first

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record if the handler ``first`` has been removed."""
        if self._first not in logging.getLogger().handlers:
            self._first.emit(record)


def keep_format() -> None:
    """Keep the current format of log lines until ``end_keeping`` is called, even if mitmproxy removes its handler."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, TermLogHandler):
            root.addHandler(_Last(handler))


def end_keeping() -> None:
    """Undo ``keep_format``, so that Python's default handler writes messages after mitmproxy has ended."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _Last):
            root.removeHandler(handler)


def own_format(handler: TermLogHandler) -> logging.Formatter:
    """Return mitmproxy's original formatter."""
    return MitmFormatter(handler.has_vt_codes)
