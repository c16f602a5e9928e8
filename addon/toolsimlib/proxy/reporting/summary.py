"""Reporting a finished exchange: its fields for the log, comment and headers. Counts and names only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from toolsimlib.report import MAX_NAMES, REMEDIES, Report, Tally, code_of, loggable_name

_COUNTED_IN_HEADERS = ("parse_failures", "strict_failures", "repairs")

NO_TOOLS = "no tools"
"""Why there was no call: the request offered none."""

MARKERS = (":x:", ":warning:")
"""Emoji, by mitmproxy's names: something failed for the client; something needs attention."""


def fields(report: Report, status: int | None, seconds: float) -> dict[str, Any]:
    """Return the exchange as plain data; ``status`` None = no answer reached the client."""
    return report.summary() | {"status": status, "seconds": round(seconds, 3)}


def comment(report: Report, status: int | None = None, words: str = "", place: str = "") -> str:
    """Return the exchange in one line for people, what matters most first.

    ``status`` is what the client got, ``words`` the beginning of the user's message, ``place`` which turn it was.
    """
    return " ".join(" · ".join(filter(None, _phrases(report, status, words, place))).split())


def _phrases(report: Report, status: int | None, words: str, place: str) -> Iterator[str]:
    is_refused = status is not None and status >= 400
    if report.error:
        yield f"error: {report.error}"
    elif is_refused:
        yield f"HTTP {status}"
    calls, *findings = report.tallies()
    if calls.entries:
        yield _counted(calls, calls.entries[:MAX_NAMES])
    elif not report.error and not is_refused:
        yield "no call" if report.tools else NO_TOOLS
    for tally in findings:
        # How a call was written is no finding.
        if tally.entries and tally.key != "untagged":
            yield _counted(tally, sorted(set(tally.entries)))
    if report.rounds > 1:
        yield f"{report.rounds} rounds"
    if report.hosted_calls:
        named = [call.removeprefix("OK:") for call in report.hosted_calls]
        yield f"MCP: {', '.join(named[:MAX_NAMES])}"
    if report.asked_again:
        yield f"asked again: {', '.join(report.asked_again[:MAX_NAMES])}"
    if report.round:
        yield f"round {report.round} of {report.part_of}"
    if report.tool_cutoff:
        yield f"cut off: {report.tool_cutoff}"
    if report.truncated and not report.dropped_calls:
        yield "truncated"
    yield from remedies(report)
    yield place
    yield " ".join(filter(None, (report.model, report.client)))
    if report.profile:
        yield f"profile {report.profile}"
    if words:
        yield f"“{words}”"


def _counted(tally: Tally, kinds: Sequence[str]) -> str:
    """Return a phrase for one tally: calls are listed in order, everything else once for each kind."""
    count = len(tally.entries)
    return f"{count} {tally.noun if count == 1 else tally.title}: {', '.join(kinds)}"


def remedies(report: Report) -> list[str]:
    """Return what an operator can set against the warnings, unless the model has been asked again."""
    if report.asked_again:
        return []
    return list(dict.fromkeys(REMEDIES[code] for warning in report.warnings if (code := code_of(warning)) in REMEDIES))


def marker(report: Report, status: int | None) -> str:
    """Return the emoji that marks an exchange that needs attention, "" for all others."""
    if status is not None and (report.error or status >= 400 or report.strict_failures):
        return MARKERS[0]
    if status is None or report.parse_failures or report.warnings or report.truncated:
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
    return {f"x-toolsim-{name}": str(value) for name, value in values.items()} | first_headers(report)


def first_headers(report: Report) -> dict[str, str]:
    """Return the headers that are known before the answer, for streams too.

    What other text after a call does, the profile, and the tools that the backend did not get, if there are any.
    """
    values = {"x-toolsim-stop-after-tools-mode": report.stop_after_tools_mode}
    if report.profile:
        values["x-toolsim-profile"] = loggable_name(report.profile)
    kinds = [loggable_name(note.removeprefix("tool:")) for note in report.dropped if note.startswith("tool:")]
    return values | ({"x-toolsim-left-out": ", ".join(dict.fromkeys(kinds[:MAX_NAMES]))} if kinds else {})


HEADERS = tuple(headers(Report(profile="any", tool_cutoff="any", dropped=["tool:any"])))
"""The names of all headers that an answer may have."""
