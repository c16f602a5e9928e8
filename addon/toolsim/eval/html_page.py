"""Renders ``report.html``, a file with no scripts or network access. All text from models and servers is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from toolsim.eval import charts
from toolsim.eval.case import Run
from toolsim.eval.summary import (
    CELL_HEAD,
    CELL_WORDS,
    Rate,
    Summary,
    by_case,
    by_method,
    cell_rows,
    combinations,
    duration,
    grouped,
)
from toolsim.recordings.web_page import cut, document, quoted, table, tile

MAX_FAILURES = 200
"""Maximum number of failed runs on the page. With thousands of them, browsers could not open the page."""
_COLOURS = 6
_NO_ANSWER = frozenset({"timeout", "http_error", "internal_error"})


def render(runs: Sequence[Run], *, planned: int, stamp: str, target: str) -> str:
    """Return the HTML page."""
    methods = list(by_method(runs))
    colours = {method: number % _COLOURS for number, method in enumerate(methods)}
    body = [_head(runs, planned, stamp, target), _tiles(runs)]
    if runs:
        body += [_success(runs, colours), _latency(runs, colours), _cells(runs), *_failures(runs)]
    return document(f"toolsim evaluation {stamp}", body)


def _head(runs: Sequence[Run], planned: int, stamp: str, target: str) -> str:
    models = ", ".join(dict.fromkeys(run.cell.model for run in runs)) or "no model"
    broken = (
        f'<p class="warning">Interrupted: {len(runs)} of {planned} runs are complete.</p>'
        if len(runs) < planned
        else ""
    )
    return (
        f"<header><h1>Evaluation</h1><p>{escape(stamp)} · {escape(models)} · {escape(target)} · {len(runs)} runs</p>"
        f"{broken}</header>"
    )


def _tiles(runs: Sequence[Run]) -> str:
    total, (every, at_100, at_96) = Summary.of(runs), combinations(runs)
    tiles = [
        _rate_tile("overall", total.rate),
        _rate_tile("with tools", Rate.of(run for run in runs if run.kind == "tools")),
        _rate_tile("chat", Rate.of(run for run in runs if run.kind == "chat")),
        tile("combinations at 100 %", f"{len(at_100)} of {len(every)}", f"{len(at_96)} at 96 % or more"),
        tile(
            "calls corrected by toolsim",
            str(total.repaired + total.untagged),
            f"{total.repaired} repaired, {total.untagged} untagged",
        ),
    ]
    return f'<section class="tiles">{"".join(tiles)}</section>'


def _rate_tile(name: str, rate: Rate) -> str:
    if not rate.runs:
        return ""
    low, high = rate.interval
    return tile(name, f"{rate.percent:.1f} %", f"{rate.ok} of {rate.runs} · 95 %: {low:.0f} to {high:.0f}")


def _success(runs: Sequence[Run], colours: dict[str, int]) -> str:
    groups = [
        (case, {method: Rate.of(found) for method, found in by_method(own).items()})
        for case, own in by_case(runs).items()
    ]
    return _figure("Success by case and method", _legend(colours), charts.rates(groups, colours))


def _latency(runs: Sequence[Run], colours: dict[str, int]) -> str:
    strips = [
        (f"{model} · {method}", colours[method], [run.ms for run in own if run.label not in _NO_ANSWER])
        for (model, method), own in grouped(runs, lambda run: (run.cell.model, run.cell.method_name)).items()
    ]
    plot = charts.latencies(strips)
    note = (
        '<p class="note">Each dot is the duration of a run, from its first question to its last answer; the scale '
        "is logarithmic.</p>"
    )
    return _figure("Latency", note, plot) if plot else ""


def _figure(title: str, note: str, plot: str) -> str:
    return f'<section><h2>{escape(title)}</h2>{note}<div class="plot">{plot}</div></section>'


def _legend(colours: dict[str, int]) -> str:
    entries = (f'<li><i class="method{colour}"></i>{escape(method)}</li>' for method, colour in colours.items())
    return f'<ul class="legend">{"".join(entries)}<li class="note">whisker: 95 % interval</li></ul>'


def _cells(runs: Sequence[Run]) -> str:
    rows = table(CELL_HEAD[:-1], (row[:-1] for row in cell_rows(runs)), numbers=CELL_WORDS)
    return f"<section><h2>By model, sampling profile and method</h2>{rows}</section>"


def _failures(runs: Sequence[Run]) -> Iterator[str]:
    failed = [run for run in runs if not run.ok]
    if not failed:
        yield "<section><h2>Failures</h2><p>None.</p></section>"
        return
    methods = list(by_method(failed))
    rows = (_label_row(label, count, failed, methods) for label, count in Summary.of(failed).failures.items())
    yield f"<section><h2>Failures by label</h2>{table(('label', *methods, 'all'), rows, numbers=1)}</section>"
    shown = "".join(_failure(run) for run in failed[:MAX_FAILURES])
    more = len(failed) - MAX_FAILURES
    note = f'<p class="note">And {more} more; runs.jsonl contains all failed runs.</p>' if more > 0 else ""
    yield f'<section class="failures"><h2>Failed runs</h2>{shown}{note}</section>'


def _label_row(label: str, count: int, failed: Sequence[Run], methods: Sequence[str]) -> Sequence[str]:
    by_method = (sum(run.label == label and run.cell.method_name == method for run in failed) for method in methods)
    return (label, *(str(number or "") for number in by_method), str(count))


def _failure(run: Run) -> str:
    where = f"{run.cell.name} · trial {run.trial + 1}"
    steps = "".join(_step(number, step) for number, step in enumerate(run.steps, 1))
    return (
        f"<details><summary><b>{escape(run.case)}</b><em>{escape(run.label or '')}</em>"
        f"<span>{escape(where)}</span><small>{escape(cut(run.detail, 300))}</small></summary>{steps}</details>"
    )


def _step(number: int, step: dict[str, Any]) -> str:
    parts = [f"<h3>Question {number}<small>{duration(step.get('ms', 0))}</small></h3>"]
    messages = step.get("shown")
    if messages is None:
        messages = [[message["role"], message.get("content") or ""] for message in step["messages"]]
        if step.get("tools"):
            parts.append(f'<p class="note">Tools on offer: {escape(", ".join(step["tools"]))}</p>')
    parts += [quoted(f"shown · {role}", text) for role, text in messages]
    if step.get("wrote"):
        parts.append(quoted("the model wrote", step["wrote"], "wrote"))
    answer = step.get("answer")
    if answer is not None:
        calls = "\n".join(f"{call['name']}({call['arguments']})" for call in answer["calls"])
        if answer["text"] and answer["text"] != step.get("wrote"):
            parts.append(quoted("the client received this text", answer["text"], "got"))
        if calls:
            parts.append(quoted("the client received these calls", calls, "got"))
        if not calls and not answer["text"]:
            parts.append(quoted("the client received", "an empty answer", "got"))
    if repairs := step.get("repairs"):
        parts.append(f'<p class="note">Repairs: {escape(", ".join(repairs))}</p>')
    if error := step.get("error"):
        status = f"HTTP {error['status']}: " if error.get("status") else ""
        parts.append(quoted("error", f"{status}{error['message']}", "error"))
    return "".join(parts)
