"""Tests for comparing two reports case by case."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from toolsim.command_line import UsageError
from toolsim.eval import command
from toolsim.eval.case import Run
from toolsim.eval.compare import chosen, pair, render
from toolsim.eval.journal import Journal, Secrets
from toolsim.eval.measures import mcnemar

from .runs import run


def report(*right: bool, **cell: str) -> list[Run]:
    return [run(f"case_{number}", ok=ok, **cell) for number, ok in enumerate(right)]  # type: ignore[arg-type]


def test_flipped_cases_are_named_and_tested() -> None:
    """Cases with different results are listed, beginning with the cases that only report A answered correctly. The
    p-value is McNemar's exact p-value.
    """
    a = report(True, True, True, True, True, True, False, False)
    b = report(True, False, False, False, False, False, True, False)
    comparison = pair(a, b)
    assert [x.case for x, _ in comparison.flipped] == [f"case_{n}" for n in (1, 2, 3, 4, 5, 6)]
    assert comparison.p == mcnemar(5, 1)
    text = render(comparison)
    assert "8 cases in both reports: 1 correct in both, 5 only in A, 1 only in B, 1 in neither" in text
    assert "McNemar's exact p = 0.2188" in text
    assert len(re.findall("right → wrong", text)) == 5


def test_runs_differing_in_one_constant_option_are_paired() -> None:
    """Runs are paired even if reports A and B use different settings or methods, as long as each report uses only
    one.
    """
    a, b = (
        report(True, False, setting="toolsim_history=bracketed"),
        report(True, True, setting="toolsim_history=tagged"),
    )
    assert len(pair(a, b).pairs) == 2
    assert len(pair(report(True, method="toolsim"), report(False, method="native")).pairs) == 1


def test_runs_without_a_partner_are_counted() -> None:
    """Only runs of the same model are paired. Runs that cannot be paired are counted."""
    a = report(True, True, model="x") + report(False, False, model="y")
    b = report(True, True, model="y") + report(False, model="z")
    comparison = pair(a, b)
    assert {(x.cell.model, y.cell.model) for x, y in comparison.pairs} == {("y", "y")}
    assert (comparison.alone_a, comparison.alone_b) == (2, 1)
    assert "2 of A, 1 of B" in render(comparison)


def test_trials_are_paired_one_by_one() -> None:
    """If a case has several trials, trials with the same number are paired."""
    a = [replace(run(), trial=number) for number in range(3)]
    assert [(x.trial, y.trial) for x, y in pair(a, a[1:]).pairs] == [(1, 1), (2, 2)]


def test_reports_without_common_runs_are_an_error() -> None:
    with pytest.raises(UsageError):
        pair([run("a")], [run("b")])


def test_part_of_a_report_can_be_selected() -> None:
    """The runs to be compared can be restricted to a suite and to the values of other fields, such as the method."""
    runs = [*report(True, method="native"), *report(True, method="toolsim"), run(suite="guards")]
    assert len(chosen(runs, {"method": "toolsim"})) == 2
    assert len(chosen(runs, {"method": "toolsim", "suite": "guards"})) == 1


def test_compare_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``toolsim eval compare`` compares two folders or two methods in a folder. If a folder is not a report, the exit
    code is 2.
    """
    for name, runs in (("a", report(True, True)), ("b", report(False, True) + report(True, False, method="native"))):
        journal = Journal(tmp_path / name, Secrets())
        for entry in runs:
            journal.add(entry)
        journal.close()
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert command.main(["compare", a, b, "--b", "method=toolsim"]) == 0
    assert "scenarios case_0" in capsys.readouterr().out
    assert command.main(["compare", b, b, "--a", "method=toolsim", "--b", "method=native"]) == 0
    assert "1 only in A, 1 only in B" in capsys.readouterr().out
    assert command.main(["compare", a, str(tmp_path)]) == 2
    with pytest.raises(SystemExit):
        command.main(["compare", a, b, "--a", "colour=red"])
