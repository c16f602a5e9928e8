"""The log, in the form that ``toolsim_log`` selects.

- ``text``: one line per turn, for people (``turn_line``); failures and oddities are warnings, which mitmproxy shows in
  colour. mitmproxy's own lines about connections and about our requests are left out.
- ``json``: every line of the terminal is one JSON object, for programs: ``time``, ``level``, then ``message``, or the
  fields of a turn (``summary.fields``).
- ``off``: nothing about turns, and mitmproxy's log unchanged.

Everything goes through ``logging``, so that mitmweb's event log and mitmproxy's screen show it too. Only the terminal's
formatter is replaced: mitmproxy's starts each line with the time in brackets, and a line that the terminal's encoding
cannot represent would raise an exception in the code that logged it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mitmproxy import ctx
from mitmproxy.addons.termlog import TermLogHandler
from mitmproxy.log import MitmFormatter

from toolsimlib.proxy.reporting import summary
from toolsimlib.proxy.reporting.turn_line import turn_line
from toolsimlib.report import Report

logger = logging.getLogger(__name__)

# It logs the opening and closing of connections on both sides: six lines per turn.
_CONNECTIONS = logging.getLogger("mitmproxy.proxy.server")
# Which requests get mitmdump's own two lines: not those that get our line, nor those of pollers.
_NOT_OURS = "!~u '/(responses(/resp_[0-9a-f]+)?|chat/completions|models|toolsim/metrics)/?([?].*)?$'"
_NONE = "!~all"


class Log:
    """Logs turns in the configured form, until ``restore``."""

    def __init__(self) -> None:
        self._form = "text"

    def configure(self, form: str) -> None:
        """Set the form: text, json or off."""
        self._form = form
        options = ctx.options
        is_debug = "termlog_verbosity" in options and options.termlog_verbosity == "debug"
        quiet = form != "off" and not is_debug
        _CONNECTIONS.setLevel(logging.WARNING if quiet else logging.NOTSET)
        if "dumper_filter" in options and options.dumper_filter in (None, _NOT_OURS, _NONE):
            # Flows from a file are printed as usual: nothing else shows them.
            wanted = None if options.rfile else _NONE if form == "json" else _NOT_OURS if quiet else None
            if options.dumper_filter != wanted:
                options.update(dumper_filter=wanted)  # type: ignore[no-untyped-call]
        for handler in _terminals():
            handler.formatter = _formatter(form, handler)

    def restore(self) -> None:
        """Leave the log to mitmproxy."""
        _CONNECTIONS.setLevel(logging.NOTSET)
        for handler in _terminals():
            handler.formatter = MitmFormatter(handler.has_vt_codes)

    def turn(
        self, report: Report, status: int | None, seconds: float, *, problem: str = "", is_ours: bool = True
    ) -> None:
        """Log a finished turn; the arguments are those of ``turn_line``."""
        if self._form == "off":
            return
        level = logging.WARNING if summary.marker(report, status) else logging.INFO
        fields = summary.fields(report, status, seconds) | ({"problem": problem} if problem else {})
        line = (
            turn_line(report, status, seconds, problem=problem, is_ours=is_ours)
            if self._form == "text"
            else json.dumps(fields)
        )
        logger.log(level, "%s", line, extra={"toolsim_turn": fields})


class _TextFormatter(MitmFormatter):
    """mitmproxy's formatter, limited to what the terminal's encoding can write."""

    def __init__(self, colorize: bool, encoding: str) -> None:
        super().__init__(colorize)
        self._encoding = encoding

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        line: str = super().format(record)
        return line.encode(self._encoding, "backslashreplace").decode(self._encoding)


class _JsonFormatter(logging.Formatter):
    """One JSON object per record, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        turn: object = getattr(record, "toolsim_turn", None)
        if isinstance(turn, Mapping):
            fields |= turn
        else:
            fields["message"] = record.getMessage()
            if record.exc_info:
                fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _formatter(form: str, handler: TermLogHandler) -> logging.Formatter:
    match form:
        case "json":
            return _JsonFormatter()
        case "text":
            return _TextFormatter(handler.has_vt_codes, getattr(handler.file, "encoding", None) or "utf-8")
    return MitmFormatter(handler.has_vt_codes)


def _terminals() -> list[TermLogHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, TermLogHandler)]
