"""Tests for joining several reports into one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from toolsim.command_line import UsageError
from toolsim.eval import command, report
from toolsim.eval.case import MethodName, Run
from toolsim.eval.journal import Journal, Secrets, read_runs
from toolsim.eval.merge import joined, named, shared_runs

from .runs import run

SETTINGS = {"llm_options": '{"temperature": 0}', "seed": 11}


def runs(method: MethodName, cases: Sequence[str], *, model: str = "qwen", suite: str = "bfcl:multiple") -> list[Run]:
    return [run(case, method=method, suite=suite, model=model) for case in cases]


def folder(path: Path, own: Sequence[Run], settings: dict[str, object] | None = None) -> str:
    log = Journal(path, Secrets())
    for entry in own:
        log.add(entry)
    log.write("settings.json", report.as_text(settings or SETTINGS))
    log.close()
    return str(path)


def test_only_cases_answered_by_all_methods_count() -> None:
    """Only cases that all methods have answered are counted. Otherwise, a method that has progressed further would have
    an advantage.
    """
    kept = shared_runs(
        [
            *runs("toolsim", "abc"),
            *runs("native", "bcd"),
            *runs("toolsim", "x", model="smol"),
            *runs("toolsim", "y", suite="bfcl:parallel"),
        ]
    )
    assert sorted((entry.cell.method, entry.case) for entry in kept) == [
        ("native", "b"),
        ("native", "c"),
        ("toolsim", "b"),
        ("toolsim", "c"),
        ("toolsim", "x"),
        ("toolsim", "y"),
    ]


def test_trials_are_matched_one_by_one() -> None:
    """If a method has only one trial of a case, the additional trials of the other methods are omitted."""
    native = [replace(entry, trial=trial) for trial in (0, 1) for entry in runs("native", "a")]
    assert [entry.trial for entry in shared_runs([*runs("toolsim", "a"), *native])] == [0, 0]


def test_last_part_takes_precedence() -> None:
    """If several joined reports contain the same run, the run in the last report is used."""
    assert [entry.ok for entry in joined([[run(ok=False)], [run(ok=True)]])] == [True]


def test_part_can_be_renamed() -> None:
    """The runs of a report can be renamed when reports are joined, for example to "toolsim" with an older version
    number.
    """
    (only,) = named(runs("native", "a"), "toolsim 0.1.0")
    assert (only.cell.method, only.cell.setting) == ("toolsim", "0.1.0")
    with pytest.raises(UsageError, match="beginning with one of toolsim, native, prompt"):
        named([], "yesterday")


def test_joined_report_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ``join`` command writes a complete report, which can itself be compared with others."""
    today = folder(tmp_path / "today", [*runs("toolsim", "ab"), *runs("native", "ab")])
    before = folder(tmp_path / "before", runs("native", "abc"))
    out = tmp_path / "out"
    options = ["--target", "llama.cpp", "--note", "Made in parts.", "--slim"]
    assert command.main(["join", str(out), today, before, "--name", f"{before}=toolsim 0.1.0", *options]) == 0
    assert "6 of 7 runs" in capsys.readouterr().out
    kept = read_runs(out)
    assert len(kept) == 6
    assert not any(entry.steps for entry in kept)
    text = (out / "report.md").read_text()
    assert "| bfcl:multiple | 2/2 (100.0 %, 34.2 to 100.0) | 2/2 (100.0 %, 34.2 to 100.0) |" in text
    assert "toolsim 0.1.0" in text
    assert "Made in parts." in text
    assert "llama.cpp" in text
    assert json.loads((out / report.REPORT).read_text())["overall"]["runs"] == 6
    assert command.main(["compare", str(out), str(out), "--a", "setting=", "--b", "setting=0.1.0"]) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{out}", "{a}", "{other}"], "toolsim eval join: seed is 11 in "),
        (["{out}", "{a}", "--name", "{other}=toolsim x"], "one of the reports"),
        (["{out}", "{a}", "--name", "{a}=x"], "beginning with"),
        (["{out}", "{out}"], "not a report folder"),
        (["{a}", "{a}"], "already contains a report"),
    ],
)
def test_incompatible_reports_are_refused(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If reports cannot be joined, the ``join`` command fails with a one-line error and does not write a report."""
    a = folder(tmp_path / "a", runs("toolsim", "a"))
    other = folder(tmp_path / "b", runs("native", "a"), {**SETTINGS, "seed": 12})
    filled = [argument.format(out=tmp_path / "out", a=a, other=other) for argument in arguments]
    assert command.main(["join", *filled]) == 2
    error = capsys.readouterr().err
    assert error.startswith("toolsim eval join: ")
    assert error.count("\n") == 1
    assert says in error
    assert not (tmp_path / "out").exists()
