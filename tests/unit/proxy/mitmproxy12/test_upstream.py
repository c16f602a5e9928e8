"""Tests that the patches in ``addon/docs/upstream.md`` apply to the installed version of mitmproxy."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import mitmproxy
import pytest

PAGE = Path(__file__).parents[4] / "addon" / "docs" / "upstream.md"
PATCHES = re.findall(r"^## \d+\. (.+?)$.*?^```diff\n(.+?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_each_change_has_a_patch() -> None:
    assert len(PATCHES) == PAGE.read_text().count("\n## ") == 7


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch on this machine")
@pytest.mark.parametrize(("title", "diff"), PATCHES, ids=[title for title, _ in PATCHES])
def test_each_patch_applies(title: str, diff: str, tmp_path: Path) -> None:
    """Each patch for mitmproxy applies without fuzz and results in valid Python code."""
    changed = re.findall(r"^--- a/(mitmproxy/\S+)$", diff, re.MULTILINE)
    for name in changed:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(mitmproxy.__file__).parents[1] / name, tmp_path / name)
    done = subprocess.run(
        ["patch", "-p1", "--fuzz=0"], input=diff, text=True, cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, f"{title}: {done.stdout}"
    for name in changed:
        compile((tmp_path / name).read_text(), name, "exec")
