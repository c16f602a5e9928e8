"""Registers the content views, and commands that return tables about exchanges.

The modules that render a page are imported only when a command is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mitmproxy import command
from mitmproxy.addonmanager import Loader
from mitmproxy.exceptions import CommandError
from mitmproxy.flow import Flow
from mitmproxy.http import HTTPFlow
from mitmproxy.types import Data

from toolsim.core.report import tallies
from toolsim.pages import view
from toolsim.proxy.mitmproxy12 import views
from toolsim.wire.json_fields import string

_Row = list[str]


class Inspect:
    """Registers the content views, and the commands ``toolsim.calls``, ``toolsim.transcript`` and ``toolsim.stats``."""

    def load(self, loader: Loader) -> None:
        """Register the content views."""
        views.install(view.VIEWS)

    def done(self) -> None:
        """Unregister the content views."""
        views.uninstall(view.VIEWS)

    @command.command("toolsim.calls")  # type: ignore[untyped-decorator]
    def calls(self, flows: Sequence[Flow]) -> Data:
        """List the calls that clients received: turn, name, ID, and arguments (or a custom tool's input)."""
        from toolsim.pages.read_answer import read_answer

        rows = (
            [string((view.report(flow) or {}).get("place")), call.name, call.call_id or "", call.arguments]
            for flow in _exchanges(flows)
            for call in read_answer(view.body(flow.response)).calls
        )
        return _table(rows, ["turn", "tool", "id", "arguments"])

    @command.command("toolsim.transcript")  # type: ignore[untyped-decorator]
    def transcript(self, flows: Sequence[Flow]) -> Data:
        """Show conversations as the model saw them, including the model's answer, as rows of speaker and text."""
        return _table([who, text] for flow in _exchanges(flows) for who, text in _transcript(flow))

    @command.command("toolsim.stats")  # type: ignore[untyped-decorator]
    def stats(self, flows: Sequence[Flow]) -> Data:
        """Count exchanges by outcome, calls by tool, and failures, repairs and warnings by reason."""
        counts: Counter[tuple[str, str]] = Counter()
        seconds: list[float] = []
        for flow in _exchanges(flows):
            report = view.report(flow)
            if report is not None:
                counts.update(_counted(report))
                took = report.get("seconds")
                seconds += [float(took)] if isinstance(took, int | float) else []
        rows = [[what, which, str(number)] for (what, which), number in sorted(counts.items())]
        if seconds:
            rows.append(["seconds", "mean", f"{sum(seconds) / len(seconds):.3f}"])
            rows.append(["seconds", "most", f"{max(seconds):.3f}"])
        return _table(iter(rows))


def _table(rows: Iterator[_Row], *heading: _Row) -> Data:
    """Return rows as a list of lists, which is mitmproxy's type for tables.

    Raises CommandError if there are no rows, because the console cannot show an empty table.
    """
    table: Any = list(rows)
    if not table:
        raise CommandError("The selected flows contain nothing to show.")
    table[:0] = heading
    data: Data = table
    return data


def _exchanges(flows: Sequence[Flow]) -> Iterator[HTTPFlow]:
    for flow in flows:
        if isinstance(flow, HTTPFlow) and view.is_exchange(flow):
            yield flow


def _transcript(flow: HTTPFlow) -> Iterator[tuple[str, str]]:
    """Yield the rows for a request's conversation, followed by the rows for the answer.

    The answer is the model's original text if it is available, or else the answer that the client received.
    """
    from toolsim.pages.read_answer import read_answer
    from toolsim.pages.show_request import conversation_rows, read_conversation

    for who, text in conversation_rows(read_conversation(view.body(flow.request))):
        yield who, "the tool catalog" if who == "catalog" else text
    received = view.received(flow)
    answer = read_answer(received if received is not None else view.body(flow.response))
    for choice in answer.pieces:
        if text := answer.text(choice):
            yield "assistant", text
    for call in answer.calls:
        yield "call", f"→ {call.name}   {call.call_id or ''}\n{call.arguments}"
    if answer.error is not None:
        yield "error", answer.error.message


def _counted(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a category and a value to count, for example "exchange" and "aborted"."""
    status = report.get("status")
    if status is None:
        yield "exchange", "aborted"
    elif report.get("error") or (isinstance(status, int) and status >= 400):
        yield "exchange", f"failed: {string(report.get('error')) or f'HTTP {status}'}"
    else:
        yield "exchange", "ok"
    for tally in tallies(report):
        yield from ((tally.noun, code) for code in tally.codes)
    if cutoff := string(report.get("tool_cutoff")):
        yield "ended early", cutoff
