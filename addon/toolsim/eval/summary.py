"""The figures of a report, counted from its runs: ``report.json`` stores them, Markdown and HTML show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolsim.eval.case import LABELS, Cell, Run
from toolsim.eval.measures import percentile, wilson

NEARLY_ALL = 0.96
"""The rate above which a combination counts as dependable."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The number of correct runs of a group."""

    runs: int
    ok: int

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Rate:
        """Count runs."""
        results = [run.ok for run in runs]
        return cls(len(results), sum(results))

    @property
    def percent(self) -> float:
        """The rate in percent, 0 when nothing was run."""
        return 100 * self.ok / self.runs if self.runs else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval in percent."""
        low, high = wilson(self.ok, self.runs)
        return 100 * low, 100 * high

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        interval = [round(bound, 2) for bound in self.interval]
        return {"runs": self.runs, "ok": self.ok, "percent": round(self.percent, 2), "interval": interval}


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a group of runs, one row of a table."""

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
    def of(cls, runs: Sequence[Run]) -> Figures:
        """Count runs. Latency covers only runs that ended by themselves: a timeout would just repeat its limit."""
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
            count_as_text(runs),
            count_failures(runs),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            **self.rate.as_dict(),
            "p50_ms": self.p50_ms,
            "p95_ms": self.p95_ms,
            "turns": self.turns,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "repaired": self.repaired,
            "untagged": self.untagged,
            "as_text": self.as_text,
            "failures": self.failures,
        }


def count_as_text(runs: Iterable[Run]) -> int | None:
    """Return how many answers contain a call as text; None if that was not counted for all runs."""
    total = 0
    for run in runs:
        if run.as_text is None:
            return None
        total += run.as_text
    return total


def count_failures(runs: Iterable[Run]) -> dict[str, int]:
    """Return the failures by label, in the labels' order."""
    counts = Counter(run.label for run in runs if not run.ok)
    return {label: counts[label] for label in LABELS if counts[label]}


def grouped[Key: Hashable](runs: Iterable[Run], key: Callable[[Run], Key]) -> dict[Key, list[Run]]:
    """Group runs by a key, in order of first appearance."""
    groups: dict[Key, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def by_case(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return runs by scenario; a benchmark's single cases say little, so they are grouped by suite.

    If there are several models, each has its own rows: their sum would be meaningless.
    """
    several = len({run.cell.model for run in runs}) > 1

    def name(run: Run) -> str:
        case = run.case if run.suite == "scenarios" else run.suite
        return f"{run.cell.model} · {case}" if several else case

    return grouped(runs, name)


def method_name(cell: Cell) -> str:
    """Return a cell's method with the addon options that were set for it."""
    return f"{cell.method} {cell.setting}".rstrip()


CELL_HEAD = (
    *("suite", "model", "profile", "method", "API"),
    *("right", "%", "95 % interval", "p50", "p95", "tokens in", "out", "repaired", "untagged", "as text"),
)
"""The columns of ``cell_rows``; those after the API hold numbers."""
CELL_WORDS = 5


def cell_rows(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """Yield a row of figures for each suite and cell, for people."""
    for (suite, cell), own in grouped(runs, lambda run: (run.suite, run.cell)).items():
        figures = Figures.of(own)
        low, high = figures.rate.interval
        yield (
            suite,
            cell.model,
            cell.profile,
            method_name(cell),
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
        )


def duration(ms: float) -> str:
    """Return a time for people: ``340 ms``, ``12 s``, ``1.5 s``, ``3 min``."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s".replace(".0 s", " s")
    return f"{ms / 60_000:.1f} min".replace(".0 min", " min")


@dataclass(frozen=True, slots=True)
class Combinations:
    """How many combinations of model, profile, method, API and setting there are, and how many depend on nothing."""

    all: int
    at_100: int
    at_96: int

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Combinations:
        """Count them."""
        return cls(len({run.cell for run in runs}), len(dependable(runs, 1)), len(dependable(runs, NEARLY_ALL)))


def dependable(runs: Iterable[Run], least: float) -> list[str]:
    """Return the names of the combinations of which at least this share of the runs is right."""
    rates = {cell: Rate.of(own) for cell, own in grouped(runs, lambda run: run.cell).items()}
    return [
        f"{cell.model} · {cell.profile} · {method_name(cell)} · {cell.api}{' stream' if cell.stream else ''}"
        for cell, rate in rates.items()
        if rate.ok >= least * rate.runs
    ]


def summarise(runs: Sequence[Run], *, planned: int, stamp: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``report.json``. ``planned``: the planned number of runs."""
    cells = [
        {
            "suite": suite,
            "model": cell.model,
            "profile": cell.profile,
            "method": cell.method,
            "api": cell.api,
            "stream": cell.stream,
            "setting": cell.setting,
            **Figures.of(own).as_dict(),
        }
        for (suite, cell), own in grouped(runs, lambda run: (run.suite, run.cell)).items()
    ]
    cases = [
        {"case": case, "method": method, **Rate.of(method_runs).as_dict()}
        for case, own in by_case(runs).items()
        for method, method_runs in grouped(own, lambda run: method_name(run.cell)).items()
    ]
    return {
        "stamp": stamp,
        "planned": planned,
        "overall": Rate.of(runs).as_dict(),
        "tools": Rate.of(run for run in runs if run.kind == "tools").as_dict(),
        "chat": Rate.of(run for run in runs if run.kind == "chat").as_dict(),
        "combinations": asdict(Combinations.of(runs)),
        "failures": count_failures(runs),
        "repaired": sum(run.repaired for run in runs),
        "untagged": sum(run.untagged for run in runs),
        "as_text": count_as_text(runs),
        "cases": cases,
        "cells": cells,
        "settings": settings,
    }
