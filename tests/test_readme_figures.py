"""Tests that the figures in the README and on the benchmarks page match the committed evaluation reports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.mitmdump import ROOT

PAGES = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "addon/docs/figures.md"))
REPORTS = ROOT / "tests" / "evaluation" / "reports"
MODELS = {"Qwen2.5-Coder-1.5B": "1.5b", "Qwen2.5-Coder-0.5B": "0.5b", "SmolLM2-135M": "135m"}
OF_MODELS = {"1.5b": "qwen2.5-coder-1.5b", "0.5b": "qwen2.5-coder-0.5b", "135m": "smollm2-135m"}
NAMES = {"135M": "smollm2", "0.5B": "qwen-0.5b", "1.5B": "qwen-1.5b"}
METHODS = ("toolsim", "native", "prompt")
SUITES = ("simple_python", "multiple", "parallel", "irrelevance")


def cells(report: str) -> Iterator[Mapping[str, Any]]:
    yield from json.loads((REPORTS / report / "report.json").read_text(encoding="utf-8"))["cells"]


def table(heading: str) -> list[list[str]]:
    """Return the cells of each row in the table that has this heading."""
    assert PAGES.count(f"\n{heading}") == 1
    lines = PAGES.split(f"\n{heading}")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def of(ok: int, runs: int) -> str:
    return f"{ok}/{runs}"


def test_figures_by_model_and_method() -> None:
    """Each row in the table of cases matches its model's report, including the confidence interval. The last row for
    a model is the sum of the model's rows.
    """
    report: dict[tuple[str, str], str] = {}
    sums: dict[str, list[int]] = {}
    seen = 0
    for name, *figures in table("| cases | toolsim | the server's `tools` |"):
        if model := MODELS.get(name.strip("*")):
            report = {}
            sums = {method: [0, 0] for method in METHODS}
            for cell in cells(OF_MODELS[model]):
                low, high = cell["interval"]
                report[cell["suite"], cell["way"]] = f"{of(cell['ok'], cell['runs'])} ({low:.0f} to {high:.0f}%)"
                sums[cell["way"]][0] += cell["ok"]
                sums[cell["way"]][1] += cell["runs"]
        elif name == "together":
            assert [figure.split()[0] for figure in figures] == [of(*sums[method]) for method in METHODS]
        else:
            suite = re.findall(r"`(.+?)`", name)[0]
            assert figures == [report[suite, method] for method in METHODS], name
            seen += 1
    assert seen == 16


def test_figures_of_calls_as_text() -> None:
    """The figures for answers that show a call as text, and for correct ``bfcl:irrelevance`` answers, match the
    reports.
    """
    as_text, clean = {}, {}
    for model, size in MODELS.items():
        report, short = OF_MODELS[size], model.rpartition("-")[2]
        for suites, name in ((SUITES[:3], "call needed"), (SUITES[3:], "`bfcl:irrelevance`")):
            named = {f"bfcl:{suite}" for suite in suites}
            own = [cell for cell in cells(report) if cell["suite"] in named]
            sums = {
                method: [(cell["as_text"], cell["runs"]) for cell in own if cell["way"] == method] for method in METHODS
            }
            as_text[f"{short}, {name}"] = [of(*map(sum, zip(*sums[method], strict=True))) for method in METHODS]
        runs = [json.loads(line) for line in (REPORTS / report / "runs.jsonl").read_text("utf-8").splitlines()]
        none = {
            method: [r for r in runs if r["suite"] == "bfcl:irrelevance" and r["cell"]["way"] == method]
            for method in METHODS
        }
        clean[short] = [
            of(sum(run["ok"] and not run["as_text"] for run in none[method]), len(none[method])) for method in METHODS
        ]
    assert {name: figures for name, *figures in table("| answers that show a call as text |")} == as_text
    assert {
        name: figures for name, *figures in table("| `bfcl:irrelevance`: correct, and no call in the text |")
    } == clean
    [(model, answers, native, toolsim)] = re.findall(
        r"Of Qwen2\.5-Coder-(\S+)'s (\d+) answers, (\d+) contained such a call with the server's native `tools`, "
        r"but only (\d+) with",
        " ".join(PAGES.split()),
    )
    rows = [figures for name, figures in as_text.items() if name.startswith(model)]
    for place, said in ((0, toolsim), (1, native)):
        assert sum(int(figures[place].split("/")[0]) for figures in rows) == int(said)
        assert sum(int(figures[place].split("/")[1]) for figures in rows) == int(answers)


def test_readme_has_the_sums_of_the_page() -> None:
    """In the README, each model's row equals the model's sum on the benchmarks page."""
    sums: dict[str, list[str]] = {}
    model = ""
    for name, *figures in table("| cases | toolsim | the server's `tools` |"):
        model = name.strip("*") if name.startswith("**") else model
        if name == "together":
            sums[model] = [figure.split()[0] for figure in figures]
    assert {name: figures for name, *figures in table("| all cases | toolsim |")} == sums


def test_first_figures_of_readme() -> None:
    """The README's first figures match those of one model in the table, with toolsim and with native tools."""
    [(model, right, cases, native)] = re.findall(
        r"(\S+)\s+solved (\d+) of (\d+)\s+cases\s+through\s+toolsim, but\s+only\s+(\d+)", PAGES
    )
    rows = {name: figures for name, *figures in table("| all cases | toolsim |")}
    assert rows[model][:2] == [f"{right}/{cases}", f"{native}/{cases}"]


def test_figures_before_and_after() -> None:
    """The figures before and after the introduction of manifest forms match the joined report."""
    report = {
        (cell["suite"], cell["model"], cell["setting"]): of(cell["ok"], cell["runs"])
        for cell in cells("before-and-after")
    }
    for name, *figures in table("| cases | 135M before | now |"):
        expected = [report[name.strip("`"), model, setting] for model in NAMES.values() for setting in ("before", "")]
        assert figures == expected, name


@pytest.mark.parametrize("model", ["0.5B", "1.5B"])
def test_figures_of_forms(model: str) -> None:
    """The figures for each manifest form match the model's report on forms."""
    report = {
        (cell["setting"].removeprefix("toolsim_manifest=") or "calls", cell["suite"]): of(cell["ok"], cell["runs"])
        for cell in cells(f"forms-{model.lower()}")
    }
    rows = table(f"| form, {model} | simple | multiple | parallel | irrelevance |")
    assert [name for name, *_ in rows] == ["`calls`", "`hermes`", "`schemas`", "`typescript`"]
    for name, *figures in rows:
        assert figures[: len(SUITES)] == [report[name.strip("`"), f"bfcl:{suite}"] for suite in SUITES], name


def test_figures_of_second_opinions() -> None:
    """The figures with and without second opinions match the reports, for the same cases and for unseen cases."""
    asked = {"toolsim_second_opinion=on"}
    off, on = cells("qwen2.5-coder-1.5b"), list(cells("second-opinion-1.5b"))
    before = {cell["suite"]: of(cell["ok"], cell["runs"]) for cell in off if cell["way"] == "toolsim"}
    again = next(cell for cell in cells("asking-again-1.5b") if cell["setting"] == "toolsim_retry=0")
    before["scenarios"] = of(again["ok"], again["runs"])
    now = {cell["suite"]: of(cell["ok"], cell["runs"]) for cell in on}
    assert {cell["setting"] for cell in on} == asked
    unseen = {cell["setting"]: of(cell["ok"], cell["runs"]) for cell in cells("second-opinion-unseen-1.5b")}
    others = [unseen["toolsim_second_opinion=off"], unseen["toolsim_second_opinion=on"]]
    rows = table("| cases, 1.5B | without a second opinion |")
    assert len(rows) == len(now) + 1 == len(before) + 1
    for name, *figures in rows:
        suite = re.findall(r"`(.+?)`", name)[0]
        assert figures == (others if "others" in name else [before[suite], now[suite]]), name


def test_unseen_cases_are_in_one_report() -> None:
    """The cases in the report on unseen cases are in no other report, as the page claims."""
    runs = {
        path.parent.name: {json.loads(line)["case"] for line in path.read_text(encoding="utf-8").splitlines()}
        for path in REPORTS.glob("*/runs.jsonl")
    }
    unseen = runs.pop("second-opinion-unseen-1.5b")
    assert not unseen & set().union(*runs.values())


def test_figures_of_output_order() -> None:
    """In the table on the order of outputs, each row is the sum of one model's runs, with the outputs in the order of
    their calls or in a different order.
    """
    runs = (REPORTS / "which-output" / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[tuple[str, str, str], list[bool]] = {}
    for run in map(json.loads, runs):
        order = "in the order of the calls" if "_in_order_" in run["case"] else "in another order"
        found.setdefault((run["cell"]["model"], order, run["cell"]["setting"]), []).append(run["ok"])
    rows = table("| model, outputs as the client sends them | before | now |")
    assert len(rows) == len(found) / 3 == 4
    for name, *figures in rows:
        model, order = name.split(", ")
        settings = ("before", "", "toolsim_history=record")
        right = [found[NAMES[model], order, setting] for setting in settings]
        assert figures == [of(sum(oks), len(oks)) for oks in right], name


def test_figures_of_required_calls() -> None:
    """In the table on required calls, the first column matches the model's own reports. The other columns match the
    report on required calls.
    """
    free = {
        cell["suite"]: of(cell["ok"], cell["runs"])
        for report in ("qwen2.5-coder-0.5b", "questions-0.5b")
        for cell in cells(report)
        if cell["way"] == "toolsim"
    }
    demanded = {(cell["suite"], cell["setting"]): of(cell["ok"], cell["runs"]) for cell in cells("required-0.5b")}
    rows = table("| cases, 0.5B | call optional | one call required | list required |")
    assert len(rows) == len(demanded) / 2 == 4
    for name, *figures in rows:
        suite = name.strip("`")
        assert figures == [free[suite], demanded[suite, "one call"], demanded[suite, "a list"]], name
    larger = {cell["suite"]: f"{cell['ok']} of {cell['runs']}" for cell in cells("required-1.5b")}
    right = [larger[f"bfcl:{suite}"] for suite in SUITES[:3]]
    assert (
        f"solves {right[0]}, {right[1]} and {right[2]} cases of the first three suites (`required-1.5b`)"
        in " ".join(PAGES.split())
    )
