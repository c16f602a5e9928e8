"""Computes the summary of a report from its runs. ``report.json`` stores it, and Markdown and HTML show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolsim.eval.case import LABELS, Run
from toolsim.eval.measures import percentile, wilson

NEARLY_ALL = 0.96
"""Minimum share of correct runs for a combination to be listed as nearly correct."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The number of runs in a group, and the number of correct runs."""

    runs: int
    ok: int

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Rate:
        """Return the rate for a group of runs."""
        results = [run.ok for run in runs]
        return cls(len(results), sum(results))

    @property
    def percent(self) -> float:
        """The rate in percent, or 0 if there are no runs."""
        return 100 * self.ok / self.runs if self.runs else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the rate, in percent."""
        low, high = wilson(self.ok, self.runs)
        return 100 * low, 100 * high

    def as_dict(self) -> dict[str, Any]:
        """Return the rate as JSON data."""
        interval = [round(bound, 2) for bound in self.interval]
        return {"runs": self.runs, "ok": self.ok, "percent": round(self.percent, 2), "interval": interval}


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a group of runs: one row of a table."""

    rate: Rate
    p50_ms: float
    p95_ms: float
    turns: int
    input_tokens: int
    output_tokens: int
    repaired: int
    untagged: int
    as_text: int | None
    failures: dict[str, int]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Summary:
        """Compute the summary. Errors and timeouts have no latency. ``as_text`` is None if any run lacks this count."""
        as_text = [run.as_text for run in runs if run.as_text is not None]
        failures = Counter(run.label for run in runs if not run.ok)
        times = [run.ms for run in runs if run.label not in ("timeout", "http_error", "internal_error")]
        return cls(
            Rate.of(runs),
            percentile(times, 50),
            percentile(times, 95),
            sum(run.turns for run in runs),
            sum(run.input_tokens for run in runs),
            sum(run.output_tokens for run in runs),
            sum(run.repaired for run in runs),
            sum(run.untagged for run in runs),
            sum(as_text) if len(as_text) == len(runs) else None,
            {label: failures[label] for label in LABELS if failures[label]},
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        figures = asdict(self)
        del figures["rate"]
        return self.rate.as_dict() | figures


def grouped[Key: Hashable](runs: Iterable[Run], key: Callable[[Run], Key]) -> dict[Key, list[Run]]:
    """Group runs by a key, in order of first appearance."""
    groups: dict[Key, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def by_case(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs by scenario or, in other suites, by suite. If there are several models, also group by model."""
    several = len({run.cell.model for run in runs}) > 1

    def name(run: Run) -> str:
        case = run.case if run.suite == "scenarios" else run.suite
        return f"{run.cell.model} · {case}" if several else case

    return grouped(runs, name)


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs by their method and its addon options."""
    return grouped(runs, lambda run: run.cell.method_name)


CELL_HEAD = (
    *("suite", "model", "profile", "method", "API"),
    *("right", "%", "95 % interval", "p50", "p95", "tokens in", "out", "repaired", "untagged", "as text"),
    "notes",
)
"""The column names of ``cell_rows``. The columns after the API contain numbers, except for the notes."""
CELL_WORDS = 5


def cell_rows(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """Yield one row of a table for each suite and cell, as formatted text."""
    for (suite, cell), own in grouped(runs, lambda run: (run.suite, run.cell)).items():
        figures = Summary.of(own)
        low, high = figures.rate.interval
        yield (
            suite,
            cell.model,
            cell.profile,
            cell.method_name,
            f"{cell.api}{', streamed' if cell.stream else ''}",
            f"{figures.rate.ok}/{figures.rate.runs}",
            f"{figures.rate.percent:.1f}",
            f"{low:.1f} to {high:.1f}",
            duration(figures.p50_ms),
            duration(figures.p95_ms),
            f"{figures.input_tokens:,}",
            f"{figures.output_tokens:,}",
            str(figures.repaired),
            str(figures.untagged),
            "–" if figures.as_text is None else str(figures.as_text),
            ", ".join(f"{label} {count}" for label, count in figures.failures.items()),
        )


def duration(ms: float) -> str:
    """Return a duration as text, such as ``340 ms``, ``1.5 s``, ``12 s`` or ``3 min``."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s".replace(".0 s", " s")
    return f"{ms / 60_000:.1f} min".replace(".0 min", " min")


def combinations(runs: Iterable[Run]) -> tuple[list[str], list[str], list[str]]:
    """Return the names of all combinations (cells), of those with 100% correct runs, and of those with at least 96%."""
    rates = {cell.name: Rate.of(own) for cell, own in grouped(runs, lambda run: run.cell).items()}
    at_100, at_96 = (
        [name for name in rates if rates[name].ok >= least * rates[name].runs] for least in (1, NEARLY_ALL)
    )
    return list(rates), at_100, at_96


def summarise(runs: Sequence[Run], *, planned: int, stamp: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``report.json``. ``planned`` is the planned number of runs."""
    cells = [
        {"suite": suite, **asdict(cell), **Summary.of(own).as_dict()}
        for (suite, cell), own in grouped(runs, lambda run: (run.suite, run.cell)).items()
    ]
    cases = [
        {"case": case, "method": method, **Rate.of(method_runs).as_dict()}
        for case, own in by_case(runs).items()
        for method, method_runs in by_method(own).items()
    ]
    total, found = Summary.of(runs), combinations(runs)
    return {
        "stamp": stamp,
        "planned": planned,
        "overall": total.rate.as_dict(),
        "tools": Rate.of(run for run in runs if run.kind == "tools").as_dict(),
        "chat": Rate.of(run for run in runs if run.kind == "chat").as_dict(),
        "combinations": dict(zip(("all", "at_100", "at_96"), map(len, found), strict=True)),
        "failures": total.failures,
        "repaired": total.repaired,
        "untagged": total.untagged,
        "as_text": total.as_text,
        "cases": cases,
        "cells": cells,
        "settings": settings,
    }
