"""``report.md``."""

from __future__ import annotations

from toolsimlib.evaluation.markdown import rate_text, render, table
from toolsimlib.evaluation.summary import Rate

from .runs import RUNS


def test_a_rate_has_its_interval() -> None:
    """Percent alone would claim more than so few runs can."""
    assert rate_text(Rate(14, 12)) == "12/14 (85.7 %, 60.1 to 96.0)"
    assert rate_text(Rate(0, 0)) == "–"


def test_the_ways_stand_side_by_side() -> None:
    """One row per case, one column per way; failures with what happened."""
    text = render(RUNS, planned=7, stamp="20260207T123628Z", target="http://127.0.0.1:1/v1")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == "| case | toolsim | native | toolsim toolsim_repair=off |"
    assert rows[2].startswith("| happy_path | 1/2 (50.0 %")
    assert "| no_call | 1 |" in rows
    assert any("city \\| is 'Bonn'" in row for row in rows)
    assert "broken off" not in text


def test_an_interrupted_report_says_so() -> None:
    """In its first line, before any figure."""
    assert "**broken off: 7 of 20 runs were made**" in render(RUNS, planned=20, stamp="", target="")


def test_every_row_of_a_table_has_all_its_cells() -> None:
    """Whatever a model wrote into them."""
    lines = table(["a", "b"], [["x|y\nz", "`"]]).splitlines()
    assert lines == ["| a | b |", "| --- | --- |", "| x\\|y z | ` |"]
