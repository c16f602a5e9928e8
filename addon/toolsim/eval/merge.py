"""``toolsim eval join OUT REPORT …``, which merges several reports on the same cases into one report.

An evaluation of a model on a laptop takes hours, so a comparison is done in parts: one method today, another method
tomorrow, an older version from a separate checkout. Within a suite and a model, a case counts only if every method has
run it. An older version of toolsim is evaluated as if it were the server. To distinguish it from the current version,
its method is renamed::

    toolsim eval join OUT today before --name "before=toolsim 0.1.0"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from toolsim.command_line import Parser, UsageError
from toolsim.eval import report
from toolsim.eval.case import METHODS, Run
from toolsim.eval.journal import RUNS, SETTINGS, Journal, Secrets, read_runs, read_settings
from toolsim.eval.summary import by_method, grouped

# Settings that may differ between the reports, because they do not change the questions.
_FREE = frozenset(
    {"base_url", "models", "method", "suite", "sample", "setting", "stream", "api", "trials", "offline", "options"}
)


def shared_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of cases that every method has run. Suites and models are considered separately."""
    kept: list[Run] = []
    for group in grouped(runs, lambda run: (run.suite, run.cell.model)).values():
        methods = {replace(run.cell, model="") for run in group}
        answered = grouped(group, lambda run: (run.case, run.trial))
        whole = {key for key, found in answered.items() if {replace(run.cell, model="") for run in found} == methods}
        kept += [run for run in group if (run.case, run.trial) in whole]
    return kept


def named(runs: Sequence[Run], name: str) -> list[Run]:
    """Return runs renamed to ``name``, a method with an optional suffix. Raises UsageError for an unknown method."""
    method, _, rest = name.partition(" ")
    for known in METHODS:
        if method == known:
            return [replace(run, cell=replace(run.cell, method=known, setting=rest)) for run in runs]
    raise UsageError(f"expected a name beginning with one of {', '.join(METHODS)}, got {name}")


def joined(parts: Sequence[Sequence[Run]]) -> list[Run]:
    """Return the runs of all reports, ordered by method. If several runs have the same key, the last one is used."""
    runs = {run.key: run for part in parts for run in part}.values()
    return sorted(runs, key=lambda run: METHODS.index(run.cell.method))


def common_settings(folders: Sequence[Path]) -> dict[str, object]:
    """Return the settings that all reports share. Raises UsageError if settings that change the questions differ."""
    first, *others = [
        {name: value for name, value in read_settings(folder).items() if name not in _FREE} for folder in folders
    ]
    for folder, other in zip(folders[1:], others, strict=True):
        unlike = sorted(name for name in {*first, *other} if first.get(name) != other.get(name))
        if unlike:
            name = unlike[0]
            raise UsageError(f"{name} is {first.get(name)!r} in {folders[0]}, but {other.get(name)!r} in {folder}")
    return first


def main(argv: Sequence[str]) -> int:
    """Run the command, and return its exit code. Raises UsageError if the reports cannot be merged."""
    parser = Parser(prog="toolsim eval join", description="Combine reports on the same cases.")
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="folder for the combined report; must not contain a report"
    )
    parser.add_argument("parts", type=Path, nargs="+", metavar="REPORT", help="a report folder")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="FOLDER=NAME",
        help='name under which to show the runs of REPORT, such as "toolsim 0.1.0"',
    )
    parser.add_argument("--slim", action="store_true", help="omit the models' input and output")
    parser.add_argument("--target", default="", help="description of the evaluated server, for readers of the report")
    parser.add_argument("--note", default="", help="a paragraph to show below the report's heading")
    args = parser.parse_args(argv)
    names = dict(_name(text, args.parts) for text in args.name)
    settings = common_settings(args.parts)
    parts = [named(read_runs(part), names[part]) if part in names else read_runs(part) for part in args.parts]
    if (args.out / RUNS).exists():
        raise UsageError(f"{args.out} already contains a report")
    all_runs = joined(parts)
    kept = [replace(run, steps=()) if args.slim else run for run in shared_runs(all_runs)]
    log = Journal(args.out, Secrets())
    for run in kept:
        log.add(run)
    log.close()
    log.write(SETTINGS, report.as_text(settings))
    report.write(log, kept, planned=len(kept), target=args.target, settings=settings, note=args.note)
    methods = ", ".join(by_method(kept))
    print(
        f"{len(kept)} of {len(all_runs)} runs belong to cases that all methods answered ({methods}); "
        f"{args.out / 'report.html'}"
    )
    return 0


def _name(text: str, parts: Sequence[Path]) -> tuple[Path, str]:
    folder, equals, name = text.partition("=")
    if not equals or Path(folder) not in parts:
        raise UsageError(f"--name: expected REPORT=NAME, where REPORT is one of the reports, got {text}")
    return Path(folder), name
