"""How many small changes to the rooms that decide over calls are noticed by the tests: mutmut's mutants, a sample.

    make mutants MUTANTS=25        of each room, drawn by a seed; what survived is shown as a diff

``results.md`` beside this file has what it said last, and what became of each survivor.

mutmut wants its sources in a folder ``src``, and makes the mutants there, so all of it happens in a copy. They run
in forks of a process that has imported everything and cached a little: what the package does once (tables, validators,
compiled schemas) was done before. So what survives there, and in the files that are about the room, runs once more: in
a process of its own, and with all tests of the wing. Some 20 minutes for 25 of each room, on an idle machine.
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
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = {
    "sentinel": ("response/sentinel",),
    "arguments": ("response/arguments",),
    "judge": ("response/judge", "response/verdict"),
    "turn": ("response/turn",),
    "schema": tuple(f"schema/{path.stem}" for path in (ROOT / "addon/toolsimlib/schema").glob("[a-z]*.py")),
}
# Those that mutmut runs for each mutant: few, since a mutant takes as long as its tests.
RESPONSE = [
    f"tests/unit/response/test_{name}.py" for name in ("sentinel", "dialects", "arguments", "judge", "turn", "again")
]
SCHEMA = ["tests/unit/schema"]
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


def prepare(folder: Path) -> None:
    """Copy what is needed to ``folder``, with the package in ``src``, and make all mutants."""
    shutil.copytree(ROOT / "addon", folder / "src")
    for name in ("tests", "flows"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    for name in ("README.md", "Makefile"):
        shutil.copy(ROOT / name, folder)
    files = [f"src/toolsimlib/{file}.py" for files in ROOMS.values() for file in files]
    config = (ROOT / "pyproject.toml").read_text().replace('"addon"', '"src"')
    (folder / "pyproject.toml").write_text(
        config + _CONFIG.format(files=json.dumps(files), tests=json.dumps(RESPONSE + SCHEMA))
    )
    _run(folder, "-c", "from mutmut.__main__ import create_mutants; create_mutants(1)")


def outcomes(folder: Path, room: str) -> dict[str, int | None]:
    """Return the exit code of each mutant of a room, None where it did not run."""
    found: dict[str, int | None] = {}
    for file in ROOMS[room]:
        path = folder / f"mutants/src/toolsimlib/{file}.py.meta"
        found.update(json.loads(path.read_text())["exit_code_by_key"] if path.exists() else {})
    return dict(sorted(found.items()))


def survives(folder: Path, room: str, name: str) -> bool:
    """Return whether no test notices a mutant in a process of its own."""
    tests = SCHEMA if room == "schema" else ["tests/unit/response"]
    options = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow")
    return _run(folder / "mutants", "-m", "pytest", *options, *tests, MUTANT_UNDER_TEST=name).returncode == 0


def _run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    source = folder / ("src" if folder.name == "mutants" else "mutants/src")
    environment = {**os.environ, "PYTHONPATH": str(source), "HYPOTHESIS_PROFILE": "quick", **variables}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode and not variables:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return done


def measure(folder: Path, count: int, chance: random.Random) -> None:
    """Draw ``count`` mutants of each room, run them, and tell."""
    prepare(folder)
    drawn: dict[str, list[str]] = {}
    for room in ROOMS:
        names = list(outcomes(folder, room))
        drawn[room] = chance.sample(names, min(count or len(names), len(names)))
    _run(folder, "-m", "mutmut", "run", "--max-children", "1", *(name for names in drawn.values() for name in names))
    rows = [tell(folder, room, names) for room, names in drawn.items()]
    print("\n| room | mutants | drawn | noticed | |\n|---|---|---|---|---|", *rows, sep="\n")


def tell(folder: Path, room: str, names: list[str]) -> str:
    """Show which of a room's mutants nobody noticed; return a row of the table."""
    codes = outcomes(folder, room)
    left = [name for name in names if codes[name] in _SURVIVED and survives(folder, room, name)]
    for name in left:
        print(f"\n{name}\n{_run(folder, '-m', 'mutmut', 'show', name).stdout}")
    noticed = len(names) - len(left)
    print(f"{room}: {dict(Counter(codes[name] for name in names))} by mutmut's exit codes", flush=True)
    return f"| {room} | {len(codes)} | {len(names)} | {noticed} | {noticed / len(names):.0%} |"


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, help="mutants of each room; 0: all of them, which takes hours")
    parser.add_argument("--seed", type=int, default=13)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="toolsim-mutants-") as name:
        measure(Path(name), given.count, random.Random(given.seed))


if __name__ == "__main__":
    main()
