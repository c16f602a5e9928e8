"""The rules of conftest.py, tried on a small tree of tests: what a missing program means in CI and elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

def test_one(): pytest.skip("needs node and its clients")
def test_two(): pytest.skip("an odd reason")
"""
MODULE = """
import pytest

pytest.skip("needs chromium", allow_module_level=True)
"""


# Starting workers takes seconds.
@pytest.mark.slow
@pytest.mark.parametrize(("ci", "workers"), [("true", "0"), ("true", "2"), ("", "0")])
def test_a_missing_program_fails_in_ci_alone(tmp_path: Path, ci: str, workers: str) -> None:
    """A test or module skipped for lack of a program fails in CI, in workers too; any other skip stays a skip."""
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
