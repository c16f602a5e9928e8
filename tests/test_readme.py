"""README is held against the code: each option, command and snippet in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mitmdump import ROOT, Mitmdump
from test_house import FLOORS
from toolsimlib.backends.scripted.script import DIRECTIONS
from toolsimlib.evaluation import flags, suites
from toolsimlib.proxy.options import OPTIONS, Option

README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
NODE = ROOT / "tests" / "clients" / "node"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def shown(option: Option) -> str:
    """Return an option's entry: name, default, the other choices, help, environment variable."""
    default = ", ".join(option.default) if isinstance(option.default, tuple) else json.dumps(option.default).strip('"')
    choices = " ".join(f"`{choice}`" for choice in option.choices if choice != option.default)
    heading = f"`{option.full_name}` = {f'`{default}`' if default else 'empty'}{f' ({choices})' if choices else ''}"
    env = f" [`{option.env}`]" if option.env else ""
    told = option.help.replace("<", "\\<")  # Else Markdown takes tags for its own.
    return f"- {heading}: {told}{env}"


def options_section() -> str:
    return "\n".join(shown(option) for option in OPTIONS)


def test_every_option_is_documented() -> None:
    """README lists each option with its default, choices, help and environment variable, and no other option."""
    section = README.split("<!-- options -->")[1].split("<!-- /options -->")[0].strip()
    assert section == options_section()
    known = {option.full_name for option in OPTIONS}
    assert set(re.findall(r"\btoolsim_[a-z_]+[a-z]\b", README)) <= known


def test_options_are_set_as_they_can_be() -> None:
    """What README tells to set is an option, and a value that it takes."""
    by_name = {option.full_name: option for option in OPTIONS}
    said = re.findall(r"--set (toolsim_\w+)=(\S+?)`?(?=[\s,.:])", README)
    assert said
    for name, value in said:
        assert not by_name[name].choices or value in by_name[name].choices, f"{name}={value}"


def test_every_stage_direction_is_documented() -> None:
    """README lists what the scripted model can play, and nothing else."""
    section = README.split("<!-- directions -->")[1].split("<!-- /directions -->")[0]
    assert dict(re.findall(r"^\| `\[(\w+)\]` \| (.*) \|$", section, re.MULTILINE)) == DIRECTIONS


def test_every_make_target_is_documented() -> None:
    """Each target that ``make help`` shows is in README, and each one in README exists."""
    targets = set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, re.MULTILINE)) - {"help", "setup"}
    told = set(re.findall(r"`make ([a-z]+)|^make ([a-z]+)", README, re.MULTILINE))
    assert {first or second for first, second in told} - {"setup", "help"} == targets


def test_the_flags_of_the_evaluation_exist() -> None:
    """What README tells of the evaluation, its parser takes, and the suites it names are there."""
    section = README.split("<!-- eval -->")[1].split("<!-- /eval -->")[0]
    known = set(re.findall(r"--[a-z-]+", flags.parser({}).format_help())) | {"--a", "--b"}
    told = set(re.findall(r"(?<![\w-])--[a-z-]+", section)) - {"--no-deps"}
    assert "--way" in told
    assert told <= known
    for suite in ("scenarios", "questions"):
        assert f"`{suite}`" in section or f"--suite {suite}" in section
        assert suites.load(suite)


def test_files_and_anchors_exist() -> None:
    """What README links to is there."""
    anchors = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", README, re.MULTILINE)
    }
    for link in re.findall(r"\]\(([^)]+)\)", README):
        if link.startswith("#"):
            assert link[1:] in anchors, link
        elif not link.startswith("http"):
            assert (ROOT / link).exists(), link


PACKAGE = ROOT / "addon" / "toolsimlib"
ARCHITECTURE = (PACKAGE / "README.md").read_text()


def test_the_heart_is_as_long_as_it_says() -> None:
    """README names the three files that take an hour, with their lines, to the ten or so."""
    heart = re.findall(r"`(\w+/\w+\.py)` \((\d+)(?: lines)?\)", README)
    assert len(heart) == 3
    for name, lines in heart:
        assert abs(len((PACKAGE / name).read_text().splitlines()) - int(lines)) < 25, name
    assert sum(int(lines) for _, lines in heart) < 1200


def test_the_architecture_page_names_what_is_there() -> None:
    """Its files exist, in the package or in the repository, and so do the functions and classes that it sends to."""
    for name in re.findall(r"`([\w/.]+(?:\.py|\.json|/))`", ARCHITECTURE):
        assert (PACKAGE / name).exists() or (ROOT / name).exists() or any(PACKAGE.rglob(name)), name
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    for name in re.findall(r"`(_?[a-z]+_[a-z_]+|[A-Z][a-z]+[A-Z]\w+|[A-Z]{4,})`", ARCHITECTURE):
        assert re.search(rf"\b{name}\b", source) or name == "DIALECTS", name


def test_the_architecture_page_has_the_floors_of_the_house() -> None:
    """Its table lists the floors as the house test keeps them."""
    table = ARCHITECTURE.split("<!-- floors -->")[1].split("<!-- /floors -->")[0]
    rows = re.findall(r"^\| \d+ \| ([^|]+) \|", table, re.MULTILINE)
    assert tuple(tuple(re.findall(r"`(\w+)`", row)) for row in rows) == FLOORS


def test_versions_are_those_that_are_tested() -> None:
    """The table of clients names the versions that the tests install."""
    python = re.findall(r'"([a-z-]+)(?:\[[a-z]+\])?==([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    node = json.loads((NODE / "package.json").read_text())["dependencies"]
    pinned = {f"{name}=={version}" for name, version in python} | {f"{name}@{node[name]}" for name in node}
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)` \|", README, re.MULTILINE)
    assert len(rows) == 7
    assert set(rows) <= pinned


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    with Mitmdump(toolsim_backend="scripted") as proxy:
        yield proxy.url


def aimed(snippet: str, url: str) -> str:
    assert "http://127.0.0.1:8080" in snippet
    return snippet.replace("http://127.0.0.1:8080", url)


@pytest.mark.slow
@pytest.mark.parametrize("snippet", blocks("python"))
def test_python_snippets(snippet: str, scripted: str) -> None:
    """Each Python snippet works as it stands and prints what the model says."""
    command = [sys.executable, "-W", "ignore", "-c", aimed(snippet, scripted)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "scripted" in run.stdout, run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("snippet", blocks("js"))
def test_javascript_snippets(snippet: str, scripted: str, tmp_path: Path) -> None:
    """So does each JavaScript snippet."""
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules").is_dir():
        pytest.skip("needs node and its clients (make clients)")
    (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
    (tmp_path / "snippet.mjs").write_text(aimed(snippet, scripted))
    command = [node, "snippet.mjs"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "scripted" in run.stdout, run.stderr
