"""``report.md``: the figures as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from toolsim.eval.case import Run
from toolsim.eval.summary import (
    CELL_HEAD,
    NEARLY_ALL,
    Combinations,
    Rate,
    by_case,
    cell_rows,
    count_as_text,
    count_failures,
    dependable,
    grouped,
    method_name,
)

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
    """Return the report. ``note``: a paragraph by its author below the head."""
    parts = [f"# Evaluation {stamp}", _head(runs, planned, target), *([note] if note else [])]
    methods = list(grouped(runs, lambda run: method_name(run.cell)))
    parts += [
        "## By case and method",
        table(
            ["case", *methods],
            (
                [
                    case,
                    *(rate_text(Rate.of(run for run in own if method_name(run.cell) == method)) for method in methods),
                ]
                for case, own in by_case(runs).items()
            ),
        ),
        "## By model, sampling profile and method",
        table((*CELL_HEAD, "notes"), _rows_with_notes(runs)),
    ]
    if failures := count_failures(runs):
        parts += ["## Failures", table(["label", "runs"], ([label, str(n)] for label, n in failures.items()))]
        failed = [run for run in runs if not run.ok]
        parts.append(
            table(
                ["case", "model", "method", "label", "what happened"],
                (
                    [f"{run.suite} {run.case}", run.cell.model, method_name(run.cell), run.label or "", run.detail]
                    for run in failed[:_MAX_FAILURES]
                ),
            )
        )
        if len(failed) > _MAX_FAILURES:
            parts.append(f"And {len(failed) - _MAX_FAILURES} more; `runs.jsonl` has them all.")
    return "\n\n".join(parts) + "\n"


def _rows_with_notes(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of figures; each row's notes count its failures by label."""
    groups = grouped(runs, lambda run: (run.suite, run.cell)).values()
    for row, own in zip(cell_rows(runs), groups, strict=True):
        yield (*row, ", ".join(f"{label} {count}" for label, count in count_failures(own).items()))


def _head(runs: Sequence[Run], planned: int, target: str) -> str:
    found = Combinations.of(runs)
    lines = [
        f"- overall: {rate_text(Rate.of(runs))}",
        f"- with tools: {rate_text(Rate.of(run for run in runs if run.kind == 'tools'))}",
        f"- chat: {rate_text(Rate.of(run for run in runs if run.kind == 'chat'))}",
        f"- combinations of model, profile, method and API: {found.all}, "
        f"{found.at_100} of them at 100 %, {found.at_96} at 96 % or more",
        f"- calls corrected by toolsim: {sum(run.repaired for run in runs)} repaired, "
        f"{sum(run.untagged for run in runs)} found without the tag",
        *(
            f"- at {label}: {', '.join(dependable(runs, least)) or 'none'}"
            for label, least in (("100 %", 1), ("96 % or more", NEARLY_ALL))
        ),
        *_as_text(runs),
        f"- target: {target}",
    ]
    if len(runs) < planned:
        lines.insert(0, f"- **broken off: {len(runs)} of {planned} runs were made**")
    return "\n".join([*lines, "", "Rates are right/runs, with Wilson's 95 % interval."])


def _as_text(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the answers in which a client finds a call as text, method by method."""
    counts = {method: count_as_text(own) for method, own in grouped(runs, lambda run: method_name(run.cell)).items()}
    if None not in counts.values():
        listed = ", ".join(f"{method} {count}" for method, count in counts.items())
        yield f"- answers that hold a call as text: {listed}"
