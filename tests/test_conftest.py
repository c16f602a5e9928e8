"""Tests for conftest.py and ``support/each.py``: missing programs in CI and elsewhere, and tests with several cases."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.each import each

TESTS = """
import pytest

def test_one(): pytest.skip("needs node and its clients")
def test_two(): pytest.skip("an odd reason")
"""
MODULE = """
import pytest

pytest.skip("needs chromium", allow_module_level=True)
"""


# Starting worker processes takes several seconds.
@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(("ci", "workers"), [("true", "0"), ("true", "2"), ("", "0")])
def test_missing_program_fails_only_in_ci(tmp_path: Path, ci: str, workers: str) -> None:
    """In CI, a test or module whose program is missing fails, including in worker processes. Elsewhere, the test or
    module is skipped.

    In CI, tests may still be skipped for other reasons.
    """
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text(MODULE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-rsfE", "-n", workers, "--continue-on-collection-errors"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")} | {"CI": ci}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if ci:
        assert done.returncode != 0
        assert "skipped in CI: needs node and its clients" in done.stdout
        assert "skipped in CI: needs chromium" in done.stdout
    else:
        assert done.returncode == 0, done.stdout
        assert "3 skipped" in done.stdout


def test_all_cases_run_and_failures_are_named() -> None:
    """All cases of a test are run, and two ``each`` decorators run every combination. A single failure is raised
    unchanged, and several failures are raised as a group.
    """
    ran: list[tuple[int, str]] = []

    @each("number", [1, 2, 3])
    @each("word", [pytest.param("a", id="first"), "b"])
    def numbers(number: int, word: str, fails: tuple[tuple[int, str], ...]) -> None:
        ran.append((number, word))
        assert (number, word) not in fails

    assert list(inspect.signature(numbers).parameters) == ["fails"]
    numbers(fails=())
    assert ran == [(number, word) for number in (1, 2, 3) for word in "ab"]
    with pytest.raises(AssertionError) as one:
        numbers(fails=((2, "a"),))
    assert one.value.__notes__ == ["in the case 'first'", "in the case {'number': 2}"]
    with pytest.raises(ExceptionGroup, match="2 of 3 cases failed") as several:
        numbers(fails=((1, "b"), (3, "b")))
    assert [error.__notes__[-1] for error in several.value.exceptions] == [
        "in the case {'number': 1}",
        "in the case {'number': 3}",
    ]


def test_skipped_case_does_not_end_others() -> None:
    """If a case is skipped, the other cases still run. The test is skipped only if all cases are skipped."""
    ran: list[int] = []

    @each("number", [1, 2, 3])
    def numbers(number: int, skipped: tuple[int, ...]) -> None:
        if number in skipped:
            pytest.skip("not here")
        ran.append(number)

    numbers(skipped=(1,))
    assert ran == [2, 3]
    with pytest.raises(pytest.skip.Exception, match="not here"):
        numbers(skipped=(1, 2, 3))
