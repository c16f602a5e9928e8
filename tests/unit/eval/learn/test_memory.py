"""Tests for the file that contains the answers of a tuning session: resuming a session, locking the file, and
discarding outdated answers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toolsim.eval.learn.decisions import Setting
from toolsim.eval.learn.memory import Busy, Spent, VerdictFile

ABOUT = {"url": "http://127.0.0.1:1/v1", "model": "a/b:c", "engine": "vllm", "toolsim": "1", "questions": "f"}
HERMES = Setting(manifest="hermes")


def filled(folder: Path) -> VerdictFile:
    memory = VerdictFile(folder, ABOUT)
    memory.add(HERMES, "one_01", True, input_tokens=100, output_tokens=7, seconds=1.5)
    memory.add(Setting(), "one_01", False, input_tokens=90, output_tokens=3, seconds=0.5)
    memory.add_requests(3)
    return memory


def test_resumed_session_has_all_answers(tmp_path: Path) -> None:
    """A resumed tuning session has all earlier answers and their cost. When a session is complete, its answers are
    deleted.
    """
    memory = filled(tmp_path)
    spent = memory.spent
    assert spent == Spent(requests=3, input_tokens=190, output_tokens=10, seconds=2.0, answers=2)
    memory.close()
    again = VerdictFile(tmp_path, ABOUT)
    assert again.spent == spent
    assert (again.answer(HERMES, "one_01"), again.answer(Setting(), "one_01")) == (True, False)
    assert again.answer(HERMES, "one_02") is None
    again.forget()
    assert again.answer(HERMES, "one_01") is None
    assert again.spent == Spent()
    again.close()
    third = VerdictFile(tmp_path, ABOUT)
    assert third.spent == Spent()
    third.close(is_whole=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changed", ["engine", "toolsim", "questions"])
def test_answers_of_other_versions_are_not_reused(tmp_path: Path, changed: str) -> None:
    """Answers of an earlier tuning session are not reused if the engine, the toolsim version or the question bank has
    changed.
    """
    filled(tmp_path).close()
    other = VerdictFile(tmp_path, {**ABOUT, changed: "other"})
    assert other.spent == Spent()
    assert other.answer(HERMES, "one_01") is None
    other.close()


def test_truncated_line_is_dropped(tmp_path: Path) -> None:
    """If the process was stopped while it wrote the last line, the truncated line is dropped when the file is opened
    again. Afterward, all lines are valid.
    """
    filled(tmp_path).close()
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text() + '{"setting": "defaults", "quest')
    memory = VerdictFile(tmp_path, ABOUT)
    assert memory.spent.answers == 2
    memory.add(HERMES, "one_02", True)
    memory.close()
    assert all(json.loads(line) for line in file.read_text().splitlines())


def test_concurrent_sessions_of_a_model_are_refused(tmp_path: Path) -> None:
    """While a tuning session is open, another session for the same model is refused. A session for another model uses a
    separate file.
    """
    memory = filled(tmp_path)
    with pytest.raises(Busy):
        VerdictFile(tmp_path, ABOUT)
    VerdictFile(tmp_path, {**ABOUT, "model": "d"}).close()
    memory.close()
    VerdictFile(tmp_path, ABOUT).close()
