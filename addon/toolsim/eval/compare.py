"""``toolsim eval compare A B``, which compares two reports case by case and tests the difference for significance.

Runs are paired by suite, case and trial, and by each field of their cells (model, profile, method, …) that varies
within a report. A field that is constant within each report can differ between the reports. ``--a`` and ``--b`` select
runs by a field's value, to compare two methods or two values within one report::

    toolsim eval compare REPORT REPORT --a method=toolsim --b method=native
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from toolsim.command_line import Parser, UsageError
from toolsim.eval.case import FORMER_METHOD, Cell, Run
from toolsim.eval.journal import read_runs
from toolsim.eval.markdown import rate_text, table
from toolsim.eval.measures import mcnemar
from toolsim.eval.summary import Rate

_FIELDS = tuple(field.name for field in fields(Cell))

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs of runs from reports A and B, and the number of runs in each report without a counterpart in the other."""

    pairs: Sequence[tuple[Run, Run]]
    alone_a: int
    alone_b: int

    @property
    def flipped(self) -> list[tuple[Run, Run]]:
        """The pairs in which only one of the two runs is correct. Pairs in which run A is correct come first."""
        return sorted((pair for pair in self.pairs if pair[0].ok != pair[1].ok), key=lambda pair: not pair[0].ok)

    @property
    def p(self) -> float:
        """The exact two-sided p-value of McNemar's test."""
        only_a = sum(a.ok for a, _ in self.flipped)
        return mcnemar(only_a, len(self.flipped) - only_a)


def pair(a: Sequence[Run], b: Sequence[Run]) -> Comparison:
    """Pair the runs of two reports, and return the comparison. Raises UsageError if they have no cases in common."""
    varying = [
        field for field in _FIELDS if any(len({getattr(run.cell, field) for run in side}) > 1 for side in (a, b))
    ]
    left, right = _by_key(a, varying), _by_key(b, varying)
    pairs = [(run, right[key]) for key, run in left.items() if key in right]
    if not pairs:
        raise UsageError("the two reports have no cases in common")
    return Comparison(pairs, len(a) - len(pairs), len(b) - len(pairs))


def _by_key(runs: Sequence[Run], varying: Sequence[str]) -> dict[Key, Run]:
    return {
        (run.suite, run.case, str(run.trial), *(str(getattr(run.cell, field)) for field in varying)): run
        for run in runs
    }


def chosen(runs: Sequence[Run], wanted: Mapping[str, str]) -> list[Run]:
    """Return the runs whose fields match the given values."""
    return [
        run
        for run in runs
        if all((run.suite if name == "suite" else str(getattr(run.cell, name))) == wanted[name] for name in wanted)
    ]


def render(comparison: Comparison) -> str:
    """Return the comparison in Markdown."""
    pairs, flipped = comparison.pairs, comparison.flipped
    only_a = sum(a.ok for a, _ in flipped)
    only_b = len(flipped) - only_a
    both = sum(a.ok and b.ok for a, b in pairs)
    parts = [
        table(
            ["", "right"],
            [["A", rate_text(Rate.of(a for a, _ in pairs))], ["B", rate_text(Rate.of(b for _, b in pairs))]],
        ),
        f"{len(pairs)} cases in both reports: {both} correct in both, {only_a} only in A, {only_b} only in B, "
        f"{len(pairs) - both - only_a - only_b} in neither. McNemar's exact p = {_p_text(comparison.p)}.",
    ]
    if comparison.alone_a or comparison.alone_b:
        parts.append(
            "Runs left out, because the other report contains no matching run: "
            f"{comparison.alone_a} of A, {comparison.alone_b} of B."
        )
    if flipped:
        parts.append(
            table(
                ["flipped", "case", "model", "A", "B"],
                ([_direction(a), f"{a.suite} {a.case}", a.cell.model, _result(a), _result(b)] for a, b in flipped),
            )
        )
    return "\n\n".join(parts) + "\n"


def _direction(a: Run) -> str:
    return "right → wrong" if a.ok else "wrong → right"


def _result(run: Run) -> str:
    return f"{run.cell.method_name}: {'right' if run.ok else run.label}"


def _p_text(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else f"{p:.1e}"


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code. Raises UsageError if a report cannot be read or compared."""
    parser = Parser(prog="toolsim eval compare", description="Compare two reports, case by case.")
    parser.add_argument("a", type=Path, metavar="A", help="a report folder")
    parser.add_argument("b", type=Path, metavar="B", help="another report folder, or the same folder with --a and --b")
    for side in "ab":
        parser.add_argument(
            f"--{side}",
            action="append",
            default=[],
            type=_part,
            metavar="FIELD=VALUE",
            dest=f"only_{side}",
            help=f"compare only these runs of {side.upper()}; FIELD is one of {', '.join(('suite', *_FIELDS))}",
        )
    args = parser.parse_args(argv)
    a = chosen(read_runs(args.a), dict(args.only_a))
    b = chosen(read_runs(args.b), dict(args.only_b))
    print(render(pair(a, b)), end="")
    return 0


def _part(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    name = "method" if name == FORMER_METHOD else name
    if not equals or name not in ("suite", *_FIELDS):
        raise argparse.ArgumentTypeError(
            f"expected FIELD=VALUE, with one of the fields {', '.join(('suite', *_FIELDS))}"
        )
    return name, value
