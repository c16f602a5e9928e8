"""Reporting a finished exchange: its fields for the log, comment, headers and counters. Counts and names only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from toolsimlib.report import MAX_NAMES, Report, Tally

_COUNTED_IN_HEADERS = ("parse_failures", "strict_failures", "repairs")

MARKERS = (":x:", ":warning:")
"""Emoji, by mitmproxy's names: something failed for the client; something to look at."""


def fields(report: Report, status: int | None, seconds: float) -> dict[str, Any]:
    """Return the exchange as plain data; ``status`` None = no answer reached the client."""
    return report.summary() | {"status": status, "seconds": round(seconds, 3)}


def comment(report: Report, status: int | None = None, words: str = "", place: str = "") -> str:
    """Return the exchange in one line for people, what matters most first.

    ``status`` is what the client got, ``words`` the beginning of what the user said, ``place`` which turn it was.
    """
    return " ".join(" · ".join(filter(None, _phrases(report, status, words, place))).split())


def _phrases(report: Report, status: int | None, words: str, place: str) -> Iterator[str]:
    is_refused = status is not None and status >= 400
    if report.error:
        yield f"error: {report.error}"
    elif is_refused:
        yield f"HTTP {status}"
    calls, *others = report.tallies()
    if calls.entries:
        yield _counted(calls, calls.entries[:MAX_NAMES])
    elif not report.error and not is_refused:
        yield "no call"
    for tally in others:
        if tally.entries:
            yield _counted(tally, sorted(set(tally.entries)))
    if report.tool_cutoff:
        yield f"cut off: {report.tool_cutoff}"
    if report.truncated:
        yield "truncated"
    yield place
    if words:
        yield f"“{words}”"


def _counted(tally: Tally, kinds: Sequence[str]) -> str:
    """Return a phrase for one tally: calls are listed in order, everything else once for each kind."""
    count = len(tally.entries)
    return f"{count} {tally.noun if count == 1 else tally.title}: {', '.join(kinds)}"


def marker(report: Report, status: int | None) -> str:
    """Return the emoji that marks an exchange which someone should look at, "" for all others."""
    if status is not None and (report.error or status >= 400 or report.strict_failures):
        return MARKERS[0]
    if status is None or report.parse_failures or report.truncated:
        return MARKERS[1]
    return ""


def headers(report: Report) -> dict[str, str]:
    """Return the headers of a whole answer."""
    values: dict[str, object] = {"mode": report.mode, "tool-call-count": len(report.calls)}
    for tally in report.tallies():
        if tally.key in _COUNTED_IN_HEADERS:
            values[tally.title.replace(" ", "-")] = len(tally.entries)
    values["truncated"] = str(report.truncated).lower()
    if report.tool_cutoff:
        values["tool-cutoff"] = report.tool_cutoff
    return {f"x-toolsim-{name}": str(value) for name, value in values.items()}


HEADERS = tuple(headers(Report(tool_cutoff="any")))
"""The names of all headers that an answer may have."""

_HELP = {
    "exchanges_total": "Finished exchanges that offered tools, by both dialects, streaming and outcome.",
    "tool_calls_total": "Calls given to clients.",
    "parse_failures_total": "Call blocks that stayed text, by reason.",
    "strict_failures_total": "Calls that violated a strict tool's schema, by reason.",
    "repairs_total": "Calls that were repaired, by kind.",
    "tool_cutoffs_total": "Turns that were ended early, by reason.",
    "seconds_total": "Time that finished exchanges took.",
}


class Metrics:
    """Counters over all exchanges, as Prometheus' text format 0.0.4 shows them."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self._seconds = 0.0

    def count(self, report: Report, status: int | None, seconds: float) -> None:
        """Add one finished exchange."""
        outcome = "aborted" if status is None else "failed" if report.error or status >= 400 else "ok"
        self._add(
            "exchanges_total",
            client=report.client,
            backend=report.backend,
            stream=str(report.stream).lower(),
            outcome=outcome,
        )
        self._counts["tool_calls_total", ()] += len(report.calls)
        for tally in report.tallies():
            if (name := f"{tally.key}_total") in _HELP:
                for code in tally.codes:
                    self._add(name, reason=code)
        if report.tool_cutoff:
            self._add("tool_cutoffs_total", reason=report.tool_cutoff)
        self._seconds += seconds

    def text(self, under_way: int) -> str:
        """Return all counters, and the gauge of exchanges that are under way."""
        lines = []
        for name, explanation in _HELP.items():
            lines += [f"# HELP toolsim_{name} {explanation}", f"# TYPE toolsim_{name} counter"]
            if name == "seconds_total":
                lines.append(f"toolsim_{name} {self._seconds:.3f}")
            lines += [
                f"toolsim_{name}{_labels(labels)} {count}"
                for (counted, labels), count in sorted(self._counts.items())
                if counted == name
            ]
        lines += [
            "# HELP toolsim_exchanges_open Exchanges that are under way.",
            "# TYPE toolsim_exchanges_open gauge",
            f"toolsim_exchanges_open {under_way}",
        ]
        return "\n".join(lines) + "\n"

    def _add(self, name: str, **labels: str) -> None:
        self._counts[name, tuple(labels.items())] += 1


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return ""
    escaped = ((name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
