"""Renders ``report.md``, which shows the figures as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolsim.eval.case import Run
from toolsim.eval.summary import CELL_HEAD, Rate, Summary, by_case, by_method, cell_rows, combinations

_MAX_FAILURES = 50


def rate_text(rate: Rate) -> str:
    """Return a rate with its interval: ``12/14 (85.7 %, 60.1 to 96.0)``."""
    if not rate.runs:
        return "–"
    low, high = rate.interval
    return f"{rate.ok}/{rate.runs} ({rate.percent:.1f} %, {low:.1f} to {high:.1f})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def render(runs: Sequence[Run], *, planned: int, stamp: str, target: str, note: str = "") -> str:
    """Return the report in Markdown. ``note`` is a paragraph by the report's author below the heading."""
    parts = [f"# Evaluation {stamp}", _head(runs, planned, target), *([note] if note else [])]
    methods = list(by_method(runs))
    parts += [
        "## By case and method",
        table(
            ["case", *methods],
            (
                [case, *(rate_text(Rate.of(by_method(own).get(method, ()))) for method in methods)]
                for case, own in by_case(runs).items()
            ),
        ),
        "## By model, sampling profile and method",
        table(CELL_HEAD, cell_rows(runs)),
    ]
    if failures := Summary.of(runs).failures:
        parts += ["## Failures", table(["label", "runs"], ([label, str(n)] for label, n in failures.items()))]
        failed = [run for run in runs if not run.ok]
        parts.append(
            table(
                ["case", "model", "method", "label", "what happened"],
                (
                    [f"{run.suite} {run.case}", run.cell.model, run.cell.method_name, run.label or "", run.detail]
                    for run in failed[:_MAX_FAILURES]
                ),
            )
        )
        if len(failed) > _MAX_FAILURES:
            parts.append(f"And {len(failed) - _MAX_FAILURES} more; `runs.jsonl` contains all failed runs.")
    return "\n\n".join(parts) + "\n"


def _head(runs: Sequence[Run], planned: int, target: str) -> str:
    total, (every, at_100, at_96) = Summary.of(runs), combinations(runs)
    as_text = {method: Summary.of(own).as_text for method, own in by_method(runs).items()}
    lines = [
        f"- overall: {rate_text(total.rate)}",
        f"- with tools: {rate_text(Rate.of(run for run in runs if run.kind == 'tools'))}",
        f"- chat: {rate_text(Rate.of(run for run in runs if run.kind == 'chat'))}",
        f"- combinations of model, profile, method and API: {len(every)}, "
        f"{len(at_100)} of them at 100 %, {len(at_96)} at 96 % or more",
        f"- calls corrected by toolsim: {total.repaired} repaired, {total.untagged} untagged",
        f"- at 100 %: {', '.join(at_100) or 'none'}",
        f"- at 96 % or more: {', '.join(at_96) or 'none'}",
        f"- target: {target}",
    ]
    if None not in as_text.values():
        listed = ", ".join(f"{method} {count}" for method, count in as_text.items())
        lines.insert(-1, f"- answers that contain a call as text: {listed}")
    if len(runs) < planned:
        lines.insert(0, f"- **interrupted: {len(runs)} of {planned} runs are complete**")
    return "\n".join([*lines, "", "Rates are correct runs out of all runs, with Wilson's 95 % interval."])
