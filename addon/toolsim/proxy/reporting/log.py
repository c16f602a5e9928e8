"""The log in the format that the option ``toolsim_log`` selects.

- ``text``: one line per turn, for people (``summary``). Failures and anomalies are warnings, which mitmproxy shows in
  color. mitmproxy's own lines about connections, and about requests that toolsim handles or rejects, are omitted.
- ``json``: every line in the terminal is one JSON object, for programs. It contains ``time``, ``level``, and either
  ``message`` or the record's own fields (``FIELDS``), such as the fields of a turn (``summary.fields``).
- ``off``: no lines about turns; mitmproxy's log is unchanged.

All lines go through ``logging``, so that mitmweb's event log and mitmproxy's screen show them too. Only the format of
lines in the terminal is changed (``mitmproxy12.log_format``).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mitmproxy import ctx
from mitmproxy.addons.termlog import TermLogHandler

from toolsim.core.report import Report
from toolsim.proxy.access import Refusal
from toolsim.proxy.metadata import REFUSED
from toolsim.proxy.mitmproxy12 import log_format
from toolsim.proxy.reporting import summary
from toolsim.proxy.route import PAGES
from toolsim.wire.apis import APIS

logger = logging.getLogger(__name__)

FIELDS = "toolsim_fields"
"""The attribute of a log record that contains the record's fields for the JSON log.

It is passed to ``logging`` as ``extra``.
"""

# The logger of connections is silenced, because it writes six lines per turn about opened and closed connections on
# both sides.
_CONNECTIONS = logging.getLogger("mitmproxy.proxy.server")
# For each probed page of a backend with an untrusted certificate, Tornado logs a warning. The startup banner already
# reports the problem.
_TORNADO = logging.getLogger("tornado.general")
# mitmdump logs two lines for each request that matches this filter. So the filter matches only requests that toolsim
# does not log. It also excludes frequent requests, for example for metrics.
_COUNTS = [f"{api.path_suffix}{api.token_count.path_suffix}" for api in APIS.values() if api.token_count]
_TURNS = "|".join(map(re.escape, [*(api.path_suffix for api in APIS.values()), *_COUNTS]))
_PAGES = "|".join(re.escape(path.rstrip("/")) for path in PAGES)
_NOT_OURS = f"!~u '({_TURNS}|{_PAGES}|/responses/(resp_[0-9a-f]+|compact)|/models)/?([?].*)?$' & !~meta {REFUSED}"
_NONE = "!~all"


class Log:
    """Logs turns in the configured format, and adapts mitmproxy's own log, until ``restore`` is called."""

    def __init__(self) -> None:
        self._form = "text"

    def configure(self, form: str) -> None:
        """Set the format of the log: text, json or off."""
        self._form = form
        options = ctx.options
        is_debug = "termlog_verbosity" in options and options.termlog_verbosity == "debug"
        quiet = form != "off" and not is_debug
        _CONNECTIONS.setLevel(logging.WARNING if quiet else logging.NOTSET)
        _TORNADO.setLevel(logging.ERROR if quiet else logging.NOTSET)
        if "dumper_filter" in options and options.dumper_filter in (None, _NOT_OURS, _NONE):
            # If flows are read from a file, mitmdump prints them as usual, because toolsim does not log them.
            wanted = None if options.rfile else _NONE if form == "json" else _NOT_OURS if quiet else None
            if options.dumper_filter != wanted:
                options.update(dumper_filter=wanted)  # type: ignore[no-untyped-call]
        log_format.end_keeping()
        log_format.set_format(_FORMS.get(form, log_format.own_format))

    def restore(self) -> None:
        """Restore mitmproxy's log settings, except the format of lines that are logged after all addons have ended."""
        _CONNECTIONS.setLevel(logging.NOTSET)
        _TORNADO.setLevel(logging.NOTSET)
        log_format.keep_format()

    def turn(
        self, report: Report, status: int | None, seconds: float, *, problem: str = "", is_ours: bool = True
    ) -> None:
        """Log a finished turn. The arguments have the same meaning as in ``summary.log_line``."""
        if self._form == "off":
            return
        level = logging.WARNING if summary.marker(report, status) else logging.INFO
        fields = summary.fields(report, status, seconds) | ({"problem": problem} if problem else {})
        line = (
            summary.log_line(report, status, seconds, problem=problem, is_ours=is_ours)
            if self._form == "text"
            else json.dumps(fields)
        )
        logger.log(level, "%s", line, extra={FIELDS: fields})

    def lost_calls(self, place: str, call_ids: Sequence[str]) -> None:
        """Log that the outputs of some of a turn's calls never arrived.

        ``place`` is the conversation and turn number.
        """
        if self._form == "off":
            return
        text = f"⚠ {place} · {summary.lost_calls(call_ids)}"
        logger.warning("%s", text, extra={FIELDS: {"place": place, "lost_calls": [*call_ids]}})

    def refused(self, error: Refusal, request: str, source: str, unlogged: int) -> None:
        """Log a refused request. The arguments have the same meaning as in ``summary.refusal_fields``."""
        if self._form == "off":
            return
        fields = summary.refusal_fields(error, error.reason, request, source, unlogged)
        logger.warning("%s", summary.refusal_line(fields), extra={FIELDS: fields})


class _JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object for a record."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        own: object = getattr(record, FIELDS, None)
        if isinstance(own, Mapping):
            fields |= own
        else:
            fields["message"] = record.getMessage()
            if record.exc_info:
                fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


_FORMS: Mapping[str, Callable[[TermLogHandler], logging.Formatter]] = {
    "json": lambda _: _JsonFormatter(),
    "text": log_format.TextFormatter,
}
