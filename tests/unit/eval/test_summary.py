"""Tests for the figures in a report."""

from __future__ import annotations

import json
from dataclasses import replace

from toolsim.eval.summary import Rate, Summary, by_case, summarise

from .runs import RUNS, run


def test_schema_of_report_json() -> None:
    """report.json contains the overall figures, the figures for each cell (a combination of model, profile, method and
    API), and the settings.
    """
    report = json.loads(json.dumps(summarise(RUNS, planned=9, stamp="20260207T123628Z", settings={"seed": 1})))
    assert report["overall"] == {"runs": 7, "ok": 4, "percent": 57.14, "interval": [25.05, 84.18]}
    assert (report["planned"], report["settings"]) == (9, {"seed": 1})
    assert (report["tools"]["runs"], report["chat"]["runs"]) == (5, 2)
    first = report["cells"][0]
    named = ("suite", "model", "profile", "method", "api", "runs", "ok", "p50_ms", "p95_ms")
    assert {name: first[name] for name in named} == {
        "suite": "scenarios", "model": "qwen", "profile": "default", "method": "toolsim", "api": "chat",
        "runs": 3, "ok": 2, "p50_ms": 100.0, "p95_ms": 300.0,
    }  # fmt: skip
    assert first["failures"] == {"no_call": 1}
    assert sum(cell["runs"] for cell in report["cells"]) == 7
    assert report["failures"] == {"no_call": 1, "wrong_value": 1, "http_error": 1}
    assert (report["repaired"], report["untagged"]) == (7, 14)
    assert report["combinations"] == {"all": 3, "at_100": 1, "at_96": 1}


def test_calls_as_text_need_counts_in_all_runs() -> None:
    """The number of calls written as text is available only if all runs have counted them, because a missing count is
    not zero.
    """
    counted = [replace(RUNS[0], as_text=1), replace(RUNS[1], as_text=2), replace(RUNS[2], as_text=0)]
    assert (Summary.of(counted).as_text, Summary.of([*counted, RUNS[3]]).as_text) == (3, None)
    assert summarise(counted, planned=3, stamp="", settings={})["as_text"] == 3


def test_scenarios_are_separate_and_benchmarks_combined() -> None:
    """The table has a separate row for each scenario, but a single row for all cases of a benchmark."""
    assert list(by_case(RUNS)) == ["happy_path", "chat_only", "bfcl:multiple"]


def test_latency_includes_only_answered_runs() -> None:
    """Only answered runs are included in the latencies, because timeouts and refused connections would distort them."""
    figures = Summary.of(
        [run(ms=10), run(ok=False, label="timeout", ms=120_000), run(ok=False, label="http_error", ms=1)]
    )
    assert (figures.p50_ms, figures.p95_ms) == (10, 10)


def test_no_runs_do_not_divide_by_zero() -> None:
    assert summarise([], planned=3, stamp="", settings={})["overall"]["interval"] == [0, 100]
    assert Rate.of([]).percent == 0


def test_nearly_all_means_96_percent() -> None:
    """24 correct runs out of 25 count as "at least 96%", but 23 do not."""
    for wrong, dependable in ((1, 1), (2, 0)):
        runs = [run(trial=number, ok=number >= wrong) for number in range(25)]
        assert summarise(runs, planned=25, stamp="", settings={})["combinations"]["at_96"] == dependable


def test_models_have_separate_rows() -> None:
    runs = [run("multiple_1", suite="bfcl:multiple", model=model) for model in ("small", "large")]
    assert list(by_case(runs)) == ["small · bfcl:multiple", "large · bfcl:multiple"]
    assert list(by_case(runs[:1])) == ["bfcl:multiple"]
