"""Counts how many small changes to central modules the tests detect, for a random sample of mutmut's mutants.

    make mutation MUTANTS=25 MODULES="judge choice"    25 mutants of each module; survivors are shown as diffs

``results.md`` in this folder contains the latest results, and what was done about each survivor.

mutmut needs the sources in a ``src`` folder, so the mutants are created in a copy of the checkout. It runs mutants in
forks of a process that has already imported all modules and created tables, validators and compiled schemas. Because it
misses mutants of that code, survivors run again, in a new process with all tests of the package. 25 mutants of a module
take about four minutes on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Target:
    """A module to mutate. ``files``: its files; ``tests``: the few tests that mutmut runs; ``package``: all tests."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    package: str


def _of_answers(*files: str, more: tuple[str, ...] = ()) -> Target:
    names = ("sentinel", "call_forms", "arguments", "judge", "choice", "retry", *more)
    tests = tuple(f"tests/unit/response/test_{name}.py" for name in names)
    return Target(tuple(f"response/{file}" for file in files), tests, "tests/unit/response")


_SCHEMA = tuple(f"schema/{path.stem}" for path in sorted((ROOT / "addon/toolsim/schema").glob("[a-z]*.py")))
_BACKGROUND = "tests/unit/background"
MODULES = {
    "sentinel": _of_answers("sentinel"),
    "arguments": _of_answers("arguments"),
    "judge": _of_answers("judge", "verdict"),
    "choice": _of_answers("choice"),
    "untagged": _of_answers("untagged", "prose", more=("untagged", "prose")),
    "calls": _of_answers("client_calls", more=("client_calls", "calls_that_arrive")),
    "frame_template": Target(
        ("wire/frame_template", "wire/argument_streaming"),
        (
            "tests/unit/wire/test_frame_template.py",
            "tests/unit/wire/test_argument_streaming.py",
            "tests/unit/response/test_model_turn.py",
        ),
        "tests/unit/wire",
    ),
    "schema": Target(_SCHEMA, ("tests/unit/schema",), "tests/unit/schema"),
    "history": Target(
        ("request/transcript",),
        ("tests/unit/request/test_draft.py", "tests/unit/request/test_transcript.py"),
        "tests/unit/request",
    ),
    "rounds": Target(
        ("rounds/runner", "rounds/round_planner", "rounds/merge", "rounds/opinion"),
        tuple(
            f"tests/unit/rounds/test_{name}.py" for name in ("runner", "round_planner", "merge", "opinion", "together")
        ),
        "tests/unit/rounds",
    ),
    "route": Target(
        ("proxy/route", "proxy/address", "proxy/loop_detection"),
        tuple(f"tests/unit/proxy/test_{name}.py" for name in ("route", "address", "loop_detection")),
        "tests/unit/proxy",
    ),
    "secrets": Target(
        tuple(f"recordings/{name}" for name in ("redact", "secret_rules", "stream_text")),
        tuple(f"tests/unit/recordings/test_{name}.py" for name in ("redact", "secret_rules", "stream_text")),
        "tests/unit/recordings",
    ),
    "background": Target(("background/runs", "background/endpoints"), (_BACKGROUND,), _BACKGROUND),
}
_CONFIG = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = {files}
also_copy = ["README.md", "Makefile", "flows"]
process_isolation = "forkserver"
# Seconds, fifteen times: on a busy machine a test that is only slow is not one that hangs.
timeout_constant = 8.0
pytest_add_cli_args = ["-p", "no:cacheprovider", "-m", "not slow"]
pytest_add_cli_args_test_selection = {tests}
"""
_SURVIVED = (0, 5, 33)
_PACKAGE_SECONDS = 900.0


def prepare(folder: Path, modules: Iterable[str]) -> None:
    """Copy the checkout to ``folder``, with the package in ``src``, and create all mutants of ``modules``."""
    shutil.copytree(ROOT / "addon", folder / "src")
    for name in ("tests", "flows"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    for name in ("README.md", "Makefile"):
        shutil.copy(ROOT / name, folder)
    files = [f"src/{_path(file)}" for module in modules for file in MODULES[module].files]
    tests = sorted({test for module in modules for test in MODULES[module].tests})
    config = (ROOT / "pyproject.toml").read_text().replace('"addon"', '"src"')
    (folder / "pyproject.toml").write_text(config + _CONFIG.format(files=json.dumps(files), tests=json.dumps(tests)))
    _run(folder, "-c", "from mutmut.__main__ import create_mutants; create_mutants(1)")


def _path(file: str) -> str:
    """Return the path of a module's file, relative to the sources."""
    return f"toolsim/{file}.py"


def outcomes(folder: Path, module: str) -> dict[str, int | None]:
    """Return the exit code for each mutant of a module, or None for a mutant that was not run."""
    found: dict[str, int | None] = {}
    for file in MODULES[module].files:
        path = folder / f"mutants/src/{_path(file)}.meta"
        found.update(json.loads(path.read_text())["exit_code_by_key"] if path.exists() else {})
    return dict(sorted(found.items()))


def survives(folder: Path, module: str, name: str) -> bool:
    """Return whether all tests of the package pass with a mutant, in a new process."""
    options = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow")
    try:
        done = _run(folder / "mutants", "-m", "pytest", *options, MODULES[module].package, MUTANT_UNDER_TEST=name)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    source = folder / ("src" if folder.name == "mutants" else "mutants/src")
    environment = {**os.environ, "PYTHONPATH": str(source), "HYPOTHESIS_PROFILE": "quick", **variables}
    # A mutant can make a test run forever, so runs of the package's tests have a time limit. Runs of mutmut have none.
    seconds = _PACKAGE_SECONDS if variables else None
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)
    if done.returncode and not variables:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return done


def measure(folder: Path, modules: Sequence[str], count: int, chance: random.Random) -> None:
    """Draw ``count`` mutants from each module, run them, and print the results."""
    prepare(folder, modules)
    drawn: dict[str, list[str]] = {}
    for module in modules:
        names = list(outcomes(folder, module))
        drawn[module] = chance.sample(names, min(count or len(names), len(names)))
    _run(folder, "-m", "mutmut", "run", "--max-children", "1", *(name for names in drawn.values() for name in names))
    rows = [print_survivors(folder, module, names) for module, names in drawn.items()]
    print("\n| module | mutants | drawn | noticed | |\n|---|---|---|---|---|", *rows, sep="\n")


def print_survivors(folder: Path, module: str, names: list[str]) -> str:
    """Print a module's undetected mutants; return a row of the table."""
    codes = outcomes(folder, module)
    left = [name for name in names if codes[name] in _SURVIVED and survives(folder, module, name)]
    for name in left:
        print(f"\n{name}\n{_run(folder, '-m', 'mutmut', 'show', name).stdout}")
    noticed = len(names) - len(left)
    print(f"{module}: {dict(Counter(codes[name] for name in names))} by mutmut's exit codes", flush=True)
    return f"| {module} | {len(codes)} | {len(names)} | {noticed} | {noticed / len(names):.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, help="mutants of each module; 0: all of them, which takes hours")
    parser.add_argument("modules", nargs="*", metavar="module", help=f"{', '.join(MODULES)}; none: all of them")
    parser.add_argument("--seed", type=int, default=13)
    given = parser.parse_args()
    modules = given.modules or list(MODULES)
    if unknown := sorted(set(modules) - set(MODULES)):
        parser.error(f"got the modules {', '.join(unknown)}, expected some of {', '.join(MODULES)}")
    with tempfile.TemporaryDirectory(prefix="toolsim-mutants-") as name:
        measure(Path(name), modules, given.count, random.Random(given.seed))


if __name__ == "__main__":
    main()
