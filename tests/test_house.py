"""The house rules as tests: where imports may run, what the pure part may know, a test file for each room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "addon" / "toolsimlib"
# From bottom to top. What stands in one line may not import its neighbours.
FLOORS = (
    ("errors", "report"),
    ("events",),
    ("plan",),
    ("conversation", "schema"),
    ("runtime", "wire"),
    ("request", "response"),
    ("backends", "pages"),
    ("proxy",),
    ("recordings",),
    ("evaluation",),
)
FLOOR = {wing: floor for floor, wings in enumerate(FLOORS) for wing in wings}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
EDGES = ("backends", "evaluation", "proxy", "recordings", "runtime")
# Those that may know mitmproxy.
ABOVE_MITMPROXY = ("evaluation", "proxy", "recordings")
# Input and output, and what follows from the hour or the place: none of it in the pure part.
IMPURE = {"asyncio", "logging", "os", "socket", "subprocess", "threading", "tornado", "mitmproxy", "pathlib", "sys"}


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def wing(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, inside of functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}: a relative import"
            found.add(node.module or "")
            if node.module and node.module.startswith("toolsimlib"):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_wing_has_a_floor() -> None:
    """A new file or folder of the package has to be given its place here."""
    assert {wing(path) for path in MODULES} == set(FLOOR)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_run_one_way(path: Path) -> None:
    """A room imports its own wing and lower floors, never a neighbour and never a higher one."""
    here = wing(path)
    for module in imports(path):
        if module.startswith("toolsimlib."):
            there = module.split(".")[1]
            assert there == here or FLOOR[there] < FLOOR[here], f"{name(path)} imports {module}"


@pytest.mark.parametrize("path", [path for path in MODULES if wing(path) not in EDGES], ids=name)
def test_the_pure_part_is_pure(path: Path) -> None:
    """Everything between the bytes does without input and output; time and chance are asked in the writers alone."""
    assert not {module.split(".")[0] for module in imports(path)} & IMPURE


@pytest.mark.parametrize("path", [path for path in MODULES if wing(path) not in ABOVE_MITMPROXY], ids=name)
def test_only_the_top_floors_know_mitmproxy(path: Path) -> None:
    """The edge, and the recordings above it; all below runs without the proxy."""
    assert not {module for module in imports(path) if module.split(".")[0] == "mitmproxy"}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_every_room_has_its_test_file(path: Path) -> None:
    """One source file, one test file, under the same name."""
    relative = path.relative_to(PACKAGE)
    words = ("errors", "events", "plan", "conversation")
    if str(relative.with_suffix("")) in words:
        pytest.skip("words without behaviour: every other test speaks them")
    assert (ROOT / "tests" / "unit" / relative.parent / f"test_{relative.name}").is_file()


def test_no_file_is_too_large_to_hold_in_the_head() -> None:
    """No file of the package grows beyond 500 lines."""
    assert [name(path) for path in MODULES if len(path.read_text().splitlines()) > 500] == []


def test_the_top_level_is_as_agreed() -> None:
    """Three folders, three files, and dot files."""
    seen = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    built = {"build", "dist", "node_modules"}
    assert seen - built == {"addon", "tests", "flows", "pyproject.toml", "Makefile", "README.md"}
