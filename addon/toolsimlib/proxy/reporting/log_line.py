"""One line of log for a turn, for people::

    ✓ llama3 · chat stream · 2 calls search_notes, get_weather · 1.2 s
    ✗ llama3 · chat over responses · SCHEMA_MISMATCH get_weather: /days: got string, expected integer · 0.4 s
    ⚠ llama3 · chat · no call, 3 tools · UNKNOWN_TOOL get_wether · 0.9 s
    ✓ llama3 · responses stream · no tools · 2.0 s

✗: the client got an error; ⚠: worth a look (a warning, a block that stayed text, an answer that was cut off, a client
that left). Names of
models and tools come from clients and models: what a terminal would obey is replaced, and long ones are cut. Argument
values never appear.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolsimlib.proxy.reporting import summary
from toolsimlib.report import Report, code_of

_MARKS = {summary.MARKERS[0]: "✗", summary.MARKERS[1]: "⚠", "": "✓"}
_MAX_NAMES = 8
_MAX_NAME_CHARS = 60
_MAX_PROBLEM_CHARS = 200


def log_line(report: Report, status: int | None, seconds: float, *, problem: str = "", is_ours: bool = True) -> str:
    """Return a finished turn in one line.

    ``status``: what the client got, None = nothing. ``problem``: the message of an error that was the whole answer.
    ``is_ours``: tools were offered or used; otherwise the request passed unchanged.
    """
    phrases = [printable(report.model, _MAX_NAME_CHARS) or "no model named", _way(report)]
    phrases += _outcome(report, status, problem, is_ours=is_ours)
    phrases.append(f"{seconds:.1f} s")
    return f"{_MARKS[summary.marker(report, status)]} {' · '.join(phrases)}"


def printable(text: str, most: int) -> str:
    """Return a text as one line of at most ``most`` characters, with unprintable ones replaced."""
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
    yield from summary.remedies(report)
    if report.repairs:
        yield f"repaired {listed(sorted({repair.partition(':')[2] or repair for repair in report.repairs}))}"
    if report.asked_again:
        yield f"asked again {listed(report.asked_again)}"
    if report.rounds > 1:
        yield f"{report.rounds} rounds"
    if report.profile:
        yield f"profile {printable(report.profile, _MAX_NAME_CHARS)}"
    if report.round:
        yield f"round {report.round}"
    if report.tool_cutoff:
        yield f"ended early: {printable(report.tool_cutoff, _MAX_NAME_CHARS)}"
    if report.truncated and not report.error:
        yield "cut short"
    if status is None:
        yield "the client left" if report.error in (None, "aborted") else printable(report.error or "", _MAX_NAME_CHARS)
    elif status >= 400 and not report.strict_failures:
        yield f"HTTP {status} {printable(problem or report.error or '', _MAX_PROBLEM_CHARS)}".strip()
    elif report.error and not report.strict_failures:
        yield printable(report.error, _MAX_NAME_CHARS)


def _without_call(report: Report, *, is_ours: bool) -> str:
    if not is_ours or not report.tools:
        return "no tools"
    return f"no call, {len(report.tools)} tool{'s' * (len(report.tools) > 1)}"


def _findings(report: Report) -> Iterator[str]:
    """Yield what was wrong with calls, once per kind; for a schema mismatch also its place."""
    found = dict.fromkeys([*report.strict_failures, *report.parse_failures, *report.dropped_calls, *report.warnings])
    for entry in list(found)[:_MAX_NAMES]:
        code, _, name = entry.partition(":")
        place = next((broken.partition(":")[2] for broken in report.mismatches if code_of(broken) == name), "")
        problem = f"{code} {name}".strip() + (f": {place}" if place and code == "SCHEMA_MISMATCH" else "")
        yield printable(problem, _MAX_PROBLEM_CHARS)


def listed(names: Sequence[str], most: int = _MAX_NAMES, most_chars: int = _MAX_NAME_CHARS) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(printable(name, most_chars) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
