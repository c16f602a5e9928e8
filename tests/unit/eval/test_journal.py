"""Tests for the folder in which a report is stored."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from toolsim.command_line import UsageError
from toolsim.eval.case import Cell, Run
from toolsim.eval.journal import (
    RUNS,
    SETTINGS,
    Journal,
    Secrets,
    latest,
    new_folder,
    read_runs,
    read_settings,
    stamp,
)

CELL = Cell("m", "default", "toolsim", "chat")
RUN = Run("scenarios", "happy_path", "tools", 0, CELL, True, None, "", 1.0, 1, 2, 3)
NONE = Secrets()


def test_folder_name_is_a_timestamp() -> None:
    """The name of a report's folder is the time at which the evaluation started, in UTC."""
    assert stamp(datetime(2026, 2, 7, 12, 36, 28, tzinfo=UTC)) == "20260207T123628Z"


def test_folder_names_are_unique(tmp_path: Path) -> None:
    """If two reports are started within the same second, the folder of the second has a suffix. By default, the newest
    folder is resumed.
    """
    now = datetime(2026, 2, 7, 12, 36, 28, tzinfo=UTC)
    for _ in range(2):
        journal = Journal(new_folder(tmp_path, now), NONE)
        journal.write(SETTINGS, "{}")
        journal.close()
    second = journal.folder
    assert second.name == "20260207T123628Z-2"
    assert latest(tmp_path) == second
    with pytest.raises(UsageError):
        latest(tmp_path / "nothing")


def test_finished_runs_can_be_read_immediately(tmp_path: Path) -> None:
    """A run can be read as soon as it has been added to the journal. When the folder is opened again, earlier runs are
    still available.
    """
    journal = Journal(tmp_path, NONE)
    journal.add(RUN)
    assert read_runs(tmp_path) == [RUN]
    journal.close()
    again = Journal(tmp_path, NONE)
    again.add(replace(RUN, trial=1))
    assert [run.trial for run in again.runs] == [0, 1]
    again.close()


def test_text_that_is_not_utf8_is_kept(tmp_path: Path) -> None:
    """A lone surrogate, which UTF-8 cannot encode, is written as a JSON escape."""
    journal = Journal(tmp_path, NONE)
    run = replace(RUN, detail="Grüße \ud83d")
    assert journal.add(run) == run
    journal.write("report.md", "\ud83d")
    journal.close()
    assert read_runs(tmp_path) == [run]


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_line_after_a_crash_starts_anew(tmp_path: Path, cut: int) -> None:
    """If the process crashes while it writes a line, only the run in that line is lost. Later runs begin a new line."""
    journal = Journal(tmp_path, NONE)
    journal.add(RUN)
    journal.add(replace(RUN, trial=1, detail="x" * 300))
    journal.close()
    path = tmp_path / RUNS
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(tmp_path, NONE)
    assert [run.trial for run in again.runs] in ([0], [0, 1])
    again.add(replace(RUN, trial=2))
    again.close()
    assert len(read_runs(tmp_path)) == len(path.read_text().splitlines())


def test_secrets_are_masked_in_all_files(tmp_path: Path) -> None:
    """A secret is masked in all files of a report, even if JSON escapes some of its characters."""
    key = 'sk-"quoted"-ünïcode-123456'
    journal = Journal(tmp_path, Secrets([key]))
    journal.add(replace(RUN, detail=f"Incorrect API key: {key}", steps=({"error": {"message": key}},)))
    journal.write("report.md", f"{key} and {json.dumps(key)}")
    journal.close()
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "quoted" not in written
    assert "[key]" in read_runs(tmp_path)[0].detail


def test_short_placeholder_is_not_masked() -> None:
    """The placeholder key for servers without a key is not masked. It is so short that it could be an ordinary word."""
    assert Secrets(["none", ""]).mask("none of them") == "none of them"


def test_folder_without_runs_is_refused(tmp_path: Path) -> None:
    """A folder without settings or runs is not accepted as a report."""
    for read in (read_runs, read_settings):
        with pytest.raises(UsageError):
            read(tmp_path)
    (tmp_path / SETTINGS).write_text("[]")
    with pytest.raises(UsageError):
        read_settings(tmp_path)
