"""Tests for ``report.md``."""

from __future__ import annotations

from dataclasses import replace

from toolsim.eval.markdown import rate_text, render, table
from toolsim.eval.summary import Rate

from .runs import RUNS, run


def test_rate_is_shown_with_its_interval() -> None:
    """A rate is shown with its confidence interval, because a percentage alone would be misleading if there are few
    runs.
    """
    assert rate_text(Rate(14, 12)) == "12/14 (85.7 %, 60.1 to 96.0)"
    assert rate_text(Rate(0, 0)) == "–"


def test_methods_are_columns_of_the_table() -> None:
    """The Markdown report's table has a row for each case or suite and a column for each method. Failures are listed
    with their details.
    """
    text = render(RUNS, planned=7, stamp="20260207T123628Z", target="http://127.0.0.1:1/v1")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == "| case | toolsim | native | toolsim toolsim_repair=off |"
    assert rows[2].startswith("| happy_path | 1/2 (50.0 %")
    assert "| no_call | 1 |" in rows
    assert any("city \\| is 'Bonn'" in row for row in rows)
    assert "interrupted" not in text


def test_calls_as_text_are_counted() -> None:
    """Calls that a model wrote as text are counted for each method and row. Earlier versions did not count them, so
    their rows contain a dash.
    """
    counted = [replace(run, as_text=number) for number, run in enumerate(RUNS)]
    text = render(counted, planned=7, stamp="", target="")
    assert "- answers that contain a call as text: toolsim 8, native 7, toolsim toolsim_repair=off 6\n" in text
    assert [row.split(" | ")[-2] for row in text.splitlines() if row.startswith("| scenarios | qwen")] == ["3", "7"]
    older = render(RUNS, planned=7, stamp="", target="")
    assert "contain a call as text" not in older
    rows = [row for row in older.splitlines() if "| default |" in row]
    assert len(rows) == 4
    assert all(row.split(" | ")[-2] == "–" for row in rows)


def test_interrupted_report_is_marked() -> None:
    """If the evaluation was interrupted, the Markdown report states how many of the planned runs are complete."""
    assert "**interrupted: 7 of 20 runs are complete**" in render(RUNS, planned=20, stamp="", target="")


def test_table_rows_have_all_cells() -> None:
    """Vertical bars and line breaks in a model's text do not break the table row that contains it."""
    lines = table(["a", "b"], [["x|y\nz", "`"]]).splitlines()
    assert lines == ["| a | b |", "| --- | --- |", "| x\\|y z | ` |"]


def test_reliable_combinations_are_listed() -> None:
    """The report lists the combinations of model, profile, method and API for which all runs, or at least 96% of them,
    are correct. The notes in a table row count the row's failures by label.
    """
    good = [run("a", trial=number) for number in range(3)]
    nearly = [run("a", method="native", trial=number, ok=number > 0) for number in range(25)]
    poor = [run("a", model="poor", ok=False)]
    text = render([*good, *nearly, *poor], planned=29, stamp="", target="")
    assert "- at 100 %: qwen · default · toolsim · chat\n" in text
    assert "- at 96 % or more: qwen · default · toolsim · chat, qwen · default · native · chat\n" in text
    rows = [row.split(" | ") for row in text.splitlines() if row.startswith(("| suite |", "| scenarios |"))]
    assert [row[-1].removesuffix("|").strip() for row in rows] == ["notes", "", "no_call 1", "no_call 1"]
    assert "- at 100 %: none\n- at 96 % or more: none\n" in render(poor, planned=1, stamp="", target="")
