"""Test that the pages can be built as a site, as ``make docs`` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.mitmdump import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.ci]


def test_site_builds_without_warnings(tmp_path: Path) -> None:
    """The site builds without warnings, so every link, anchor and image is valid, and every page is in the contents."""
    pytest.importorskip("myst_parser", reason="needs the extra [docs] (make docs)")
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", "-c", "addon/docs/website"]
    built = subprocess.run(
        [*command, "-d", str(tmp_path / "doctrees"), ".", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "addon" / "docs" / "tutorial.html").exists()
