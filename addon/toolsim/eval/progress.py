"""Shows the progress of an evaluation: as a live line on a terminal, otherwise as plain lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from toolsim.eval.case import Run
from toolsim.eval.measure import Job


class Progress:
    """Displays the runs. ``verbosity``: 0 = a live line on a terminal, 1 = runs and turns, 2 = also request sizes."""

    def __init__(self, total: int, verbosity: int, *, quiet: bool) -> None:
        self._verbosity = verbosity
        self._runs = self._ok = 0
        self._live: Any = None
        self._task: Any = None
        if not quiet and sys.stderr.isatty():
            self._live = _live_display()
            self._task = self._live.add_task("", total=total, rate="")
        self._quiet = quiet

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, job: Job, run: Run | None) -> None:
        """Show that a run has started (``run`` is None) or ended."""
        if run is None:
            if self._live is not None:
                self._live.update(self._task, description=f"{job.cell.model} · {job.cell.method_name} · {job.case.id}")
            return
        self._runs += 1
        self._ok += run.ok
        if self._live is not None:
            self._live.update(self._task, advance=1, rate=f"{100 * self._ok / self._runs:.0f} % correct")
        if not self._quiet and self._verbosity:
            self._say(_line(run))
            for number, step in enumerate(run.steps, 1):
                self._say(f"      {_turn(number, step, with_sizes=self._verbosity > 1)}")
            if self._verbosity > 1 and run.detail:
                self._say(f"      {run.detail}")

    def _say(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)


def _line(run: Run) -> str:
    verdict = "right" if run.ok else f"WRONG {run.label}"
    return f"{run.ms / 1000:7.1f} s  {run.suite} {run.case} · {run.cell.name}: {verdict}"


def _turn(number: int, step: Mapping[str, Any], *, with_sizes: bool) -> str:
    answer, error, sizes = step.get("answer"), step.get("error"), step.get("sizes")
    if answer is not None:
        calls = ", ".join(call["name"] for call in answer["calls"])
        said = f"calls {calls}" if calls else f"{len(answer['text'])} characters of text"
    else:
        said = error["message"] if error else "no answer"
    shown = ""
    if with_sizes and sizes:
        shown = f"; messages {sizes['messages']:,} characters, {len(step['tools'])} tools {sizes['tools']:,} characters"
    return f"turn {number}, {step.get('ms', 0) / 1000:.1f} s: {said}{shown}"


def _live_display() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Display

    return Display(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
    )
