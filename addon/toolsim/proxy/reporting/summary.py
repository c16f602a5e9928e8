"""Renders reports of finished exchanges as log fields, log lines, comments and headers.

These contain only counts and names. Examples of log lines, which are for people::

    ✓ llama3 · chat stream · 2 calls search_notes, get_weather · 1.2 s
    ✗ llama3 · chat over responses · SCHEMA_MISMATCH get_weather: /days: got string, expected integer · 0.4 s
    ⚠ llama3 · chat · no call, 3 tools · UNKNOWN_TOOL get_wether · 0.9 s
    ✓ llama3 · responses stream · no tools · 2.0 s

✗ means that the client received an error. ⚠ means that the turn needs attention, because of a warning, a block that
remained text, a truncated answer or a disconnected client. The comment is a short form for the flow list. It begins
with the most important fact and ends with the user's message.

Names of models and tools come from clients and models. So control characters are replaced in log lines, and long names
are truncated. Argument values never appear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolsim.core.errors import ApiError
from toolsim.core.report import MAX_NAMES, Report, Tally, code_of, loggable_name, remedy
from toolsim.proxy.legacy import RENAMED_HEADERS

_COUNTED_IN_HEADERS = ("parse_failures", "strict_failures", "repairs")

NO_TOOLS = "no tools"
"""The phrase for a turn whose request offered no tools and whose answer contains no calls."""

MARKERS = (":heavy_multiplication_x:", ":warning:")
"""Names of mitmproxy's markers for turns that failed for the client, and for turns that need attention.

Most of mitmproxy's markers are emoji, which many fonts lack; these two are in ordinary fonts.
"""
_MARKS = {MARKERS[0]: "✗", MARKERS[1]: "⚠", "": "✓"}
_MAX_NAMES = 8
_MAX_NAME_CHARS = 60
_MAX_PROBLEM_CHARS = 200


def fields(report: Report, status: int | None, seconds: float) -> dict[str, Any]:
    """Return the log fields of a finished exchange. ``status`` is None if the client received no answer."""
    return report.summary() | {"status": status, "seconds": round(seconds, 3)}


def comment(report: Report, status: int | None = None, words: str = "", place: str = "") -> str:
    """Return a human-readable, one-line description of the exchange, with the most important fact first.

    ``status`` is the status that the client received, ``words`` is the beginning of the user's message, and ``place``
    is the conversation and turn number.
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
        # Untagged calls are omitted, because they need no attention.
        if tally.entries and tally.key != "untagged":
            yield _counted(tally, sorted(set(tally.entries)))
    if report.rounds > 1:
        yield f"{report.rounds} rounds"
    if report.mcp_calls:
        named = [call.removeprefix("OK:") for call in report.mcp_calls]
        yield f"MCP: {', '.join(named[:MAX_NAMES])}"
    if report.retries:
        yield f"retried: {', '.join(report.retries[:MAX_NAMES])}"
    if report.round:
        yield f"round {report.round} of {report.part_of}"
    if report.tool_cutoff:
        yield f"cut off: {report.tool_cutoff}"
    if report.truncated and not report.dropped_calls:
        yield "truncated"
    yield from remedies(report)
    yield place
    yield report.user
    yield " ".join(filter(None, (report.model, report.client)))
    if report.profile:
        yield f"profile {report.profile}"
    if words:
        yield f"“{words}”"


def _counted(tally: Tally, kinds: Sequence[str]) -> str:
    """Return a phrase such as "2 calls: get_time, get_weather", based on the number of entries in the tally."""
    count = len(tally.entries)
    return f"{count} {tally.noun if count == 1 else tally.title}: {', '.join(kinds)}"


def remedies(report: Report) -> list[str]:
    """Return the options that would prevent the warnings in a report. If there was a retry, return no options."""
    if report.retries:
        return []
    return list(dict.fromkeys(filter(None, map(remedy, report.warnings))))


def marker(report: Report, status: int | None) -> str:
    """Return the marker for an exchange that needs attention, or "" for any other exchange."""
    if status is not None and (report.error or status >= 400 or report.strict_failures):
        return MARKERS[0]
    if status is None or report.parse_failures or report.warnings or report.truncated:
        return MARKERS[1]
    return ""


def headers(report: Report) -> dict[str, str]:
    """Return the response headers that describe a non-streamed answer."""
    values: dict[str, object] = {"mode": report.mode, "tool-call-count": len(report.calls)}
    for tally in report.tallies():
        if tally.key in _COUNTED_IN_HEADERS:
            values[tally.title.replace(" ", "-")] = len(tally.entries)
    values["truncated"] = str(report.truncated).lower()
    if report.tool_cutoff:
        values["tool-cutoff"] = report.tool_cutoff
    return {f"x-toolsim-{name}": str(value) for name, value in values.items()} | first_headers(report)


def first_headers(report: Report) -> dict[str, str]:
    """Return the response headers that are known before the answer. A streamed answer has only these headers.

    For a streamed answer, ``x-toolsim-usage`` is based on the model's previous answer.
    """
    values = {"x-toolsim-stop-after-tools-mode": report.stop_after_tools_mode}
    if report.profile:
        values["x-toolsim-profile"] = loggable_name(report.profile)
    kinds = [loggable_name(note.removeprefix("tool:")) for note in report.dropped if note.startswith("tool:")]
    if report.outputs_replaced:
        values["x-toolsim-outputs-replaced"] = str(report.outputs_replaced)
    if report.usage_estimated:
        values["x-toolsim-usage"] = "estimated"
    if kinds:
        values["x-toolsim-dropped-tools"] = ", ".join(dict.fromkeys(kinds[:MAX_NAMES]))
    return values | {old: values[new] for old, new in RENAMED_HEADERS.items() if new in values}


HEADERS = tuple(
    headers(Report(profile="any", tool_cutoff="any", dropped=["tool:any"], outputs_replaced=1, usage_estimated=True))
)
"""The names of all headers that toolsim can add to a response."""


# -- the log line --


def log_line(report: Report, status: int | None, seconds: float, *, problem: str = "", is_ours: bool = True) -> str:
    """Return the log line of a finished turn.

    ``status`` is the status that the client received, or None if it received no answer. ``problem`` is the message of
    an error that the client received instead of an answer. ``is_ours`` is false for a request that was forwarded
    unchanged.
    """
    phrases = [report.user] if report.user else []
    phrases += [printable(report.model, _MAX_NAME_CHARS) or "no model", _way(report)]
    phrases += _outcome(report, status, problem, is_ours=is_ours)
    phrases.append(f"{seconds:.1f} s")
    return f"{_MARKS[marker(report, status)]} {' · '.join(phrases)}"


def lost_calls(call_ids: Sequence[str]) -> str:
    """Return a phrase that lists calls whose outputs never arrived, such as "no output received for call_1"."""
    return f"no output received for {listed(call_ids)}"


def refusal_fields(error: ApiError, reason: str, request: str, source: str, unlogged: int) -> dict[str, Any]:
    """Return the log fields of a refused request.

    ``request`` contains the request's method and target. ``unlogged`` is the number of earlier refused requests from
    the same source that were not logged.
    """
    fields = {"message": "refused", "reason": reason, "status": error.status, "problem": error.message}
    return fields | {"request": printable(request, _MAX_PROBLEM_CHARS), "source": source, "unlogged": unlogged}


def refusal_line(fields: Mapping[str, Any]) -> str:
    """Return the log line of a refused request."""
    phrases = [f"refused {fields['request']}", f"from {fields['source']}"]
    phrases.append(f"HTTP {fields['status']} {printable(fields['problem'], _MAX_PROBLEM_CHARS)}")
    if unlogged := fields["unlogged"]:
        phrases.append(f"and {unlogged} more since the last log line")
    return f"{_MARKS[MARKERS[0]]} {' · '.join(phrases)}"


def printable(text: str, most: int) -> str:
    """Return ``text`` as one line of at most ``most`` characters, with unprintable characters replaced."""
    line = "".join(character if character.isprintable() else "�" for character in " ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _way(report: Report) -> str:
    over = f" over {report.backend}" if report.backend not in ("", report.client) else ""
    return f"{report.client}{' stream' if report.stream else ''}{over}"


def _outcome(report: Report, status: int | None, problem: str, *, is_ours: bool) -> Iterator[str]:
    failed = status is not None and (status >= 400 or bool(report.error) or bool(report.strict_failures))
    if report.calls:
        yield f"{len(report.calls)} call{'s' * (len(report.calls) > 1)} {listed(report.calls)}"
    elif status is not None and not failed:
        yield _without_call(report, is_ours=is_ours)
    yield from _findings(report)
    yield from remedies(report)
    if report.repairs:
        yield f"repaired {listed(sorted({repair.partition(':')[2] or repair for repair in report.repairs}))}"
    if report.retries:
        yield f"retried {listed(report.retries)}"
    if report.rounds > 1:
        yield f"{report.rounds} rounds"
    if report.profile:
        yield f"profile {printable(report.profile, _MAX_NAME_CHARS)}"
    if report.round:
        yield f"round {report.round}"
    if report.tool_cutoff:
        yield f"ended early: {printable(report.tool_cutoff, _MAX_NAME_CHARS)}"
    if report.usage_estimated and report.tokens:
        yield "usage estimated"
    if report.truncated and not report.error:
        yield "truncated"
    if status is None:
        yield (
            "client disconnected"
            if report.error in (None, "aborted")
            else printable(report.error or "", _MAX_NAME_CHARS)
        )
    elif status >= 400 and not report.strict_failures:
        yield f"HTTP {status} {printable(problem or report.error or '', _MAX_PROBLEM_CHARS)}".strip()
    elif report.error and not report.strict_failures:
        yield printable(report.error, _MAX_NAME_CHARS)


def _without_call(report: Report, *, is_ours: bool) -> str:
    if not is_ours or not report.tools:
        return "no tools"
    return f"no call, {len(report.tools)} tool{'s' * (len(report.tools) > 1)}"


def _findings(report: Report) -> Iterator[str]:
    """Yield each distinct fault and warning once, with the location of any schema mismatch."""
    found = dict.fromkeys([*report.strict_failures, *report.parse_failures, *report.dropped_calls, *report.warnings])
    for entry in list(found)[:_MAX_NAMES]:
        code, _, name = entry.partition(":")
        place = next((broken.partition(":")[2] for broken in report.mismatches if code_of(broken) == name), "")
        problem = f"{code} {name}".strip() + (f": {place}" if place and code == "SCHEMA_MISMATCH" else "")
        yield printable(problem, _MAX_PROBLEM_CHARS)


def listed(names: Sequence[str], most: int = _MAX_NAMES, most_chars: int = _MAX_NAME_CHARS) -> str:
    """Return the first ``most`` names, and the number of remaining names, as text."""
    shown = ", ".join(printable(name, most_chars) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
