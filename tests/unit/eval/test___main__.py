"""Tests for ``python -m toolsim.eval``."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_module_runs() -> None:
    """``python -m toolsim.eval --help`` prints the help. Incorrect usage causes exit code 2 without a traceback."""
    command = [sys.executable, "-m", "toolsim.eval"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert "--base-url" in done.stdout
    wrong = subprocess.run([*command, "--method", "magic"], capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
