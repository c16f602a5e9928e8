"""Adapts the flow lists of mitmweb and the console: selects columns, and removes flows.

toolsim writes the outcome of a turn to the flow's comment. mitmweb has a column for comments, but hides it by default,
and makes it only two words wide. So the column is selected, and a few rules are added to the style sheet.

Relies on these internals of mitmproxy 12.2:

1. mitmweb's master has its Tornado application in ``app``. The application's setting ``static_path`` is a folder that
   contains a style sheet with a rule for ``.col-comment``.
2. The command ``view.flows.remove`` kills a flow if it is ``live``.
3. ``AddonManager.trigger`` is discouraged because it does not reach async handlers, but mitmproxy offers no other way
   to redraw a row outside of a coroutine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.hooks import UpdateHook
from mitmproxy.http import HTTPFlow
from mitmproxy.options import Options

if TYPE_CHECKING:
    from tornado.web import Application

logger = logging.getLogger(__name__)

COLUMNS = ("icon", "path", "comment", "status", "size", "time")
"""The columns to show in mitmweb. Method and TLS are omitted, because they are the same in every row."""

# A URL that does not fit is cut off at its start, because the host is the same in every row.
STYLE = """
.flow-table .col-path { width: 195px; }
.flow-table td.col-path { direction: rtl; text-align: left; }
.flow-table .col-comment { width: auto; }
.flow-table td.col-comment { text-align: left; }
"""

_OPTION = "web_columns"
_REMOVE = "view.flows.remove"
_STYLED = "toolsim_style"


def show_comments(options: Options) -> None:
    """Show mitmweb's comments column, unless the operator chose the columns explicitly."""
    if _OPTION in options and not options.has_changed(_OPTION):  # type: ignore[no-untyped-call]
        options.update(**{_OPTION: list(COLUMNS)})  # type: ignore[no-untyped-call]


def widen_comments(application: object) -> None:
    """Make the comments column fill the available width if ``application`` is mitmweb's Tornado application."""
    if application is None:
        return
    # The import is local, because only mitmweb, which has already imported tornado, needs it.
    from tornado.web import Application, RequestHandler

    class StyleSheet(RequestHandler):
        def initialize(self, path: Path) -> None:
            self._path = path

        def get(self) -> None:
            self.set_header("Content-Type", "text/css")
            self.finish(self._path.read_text(encoding="utf-8") + STYLE)

    if not isinstance(application, Application) or _STYLED in application.settings:
        return
    sheets = list(_style_sheets(application))
    if not sheets:
        logger.info("Unsupported mitmweb (no style for .col-comment): the comments column stays narrow.")
    application.settings[_STYLED] = True
    application.add_handlers(".*", [(rf"/static/{sheet.name}", StyleSheet, {"path": sheet}) for sheet in sheets])


def updated(flow: HTTPFlow) -> None:
    """Redraw the row of a flow that has changed."""
    ctx.master.addons.trigger(UpdateHook([flow]))


def hide(flow: HTTPFlow) -> None:
    """Remove a flow from the list. The flow is not killed, even if it is live (rule 2)."""
    if _REMOVE not in ctx.master.commands.commands:
        return
    is_live, flow.live = flow.live, False
    try:
        ctx.master.commands.call(_REMOVE, [flow])
    finally:
        flow.live = is_live


def _style_sheets(application: Application) -> Iterator[Path]:
    folder = application.settings.get("static_path")
    for path in Path(folder).glob("*.css") if isinstance(folder, str) else ():
        if ".col-comment" in path.read_text(encoding="utf-8"):
            yield path
