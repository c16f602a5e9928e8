"""Tests for the files of a report."""

from __future__ import annotations

import json
from pathlib import Path

from toolsim.eval import report
from toolsim.eval.journal import Journal, Secrets

from .runs import RUNS


def test_all_three_files_agree(tmp_path: Path) -> None:
    """The JSON, Markdown and HTML files contain the same overall rate, the timestamp of the folder, and no secrets."""
    log = Journal(tmp_path / "20260207T123628Z", Secrets(["sesame-opens"]))
    report.write(
        log, RUNS, planned=7, target="http://sesame-opens/v1", settings={"seed": 1}, note="Said by its author."
    )
    log.close()
    texts = {path.suffix: path.read_text() for path in log.folder.glob("report.*")}
    assert json.loads(texts[".json"])["overall"]["ok"] == 4
    assert "4/7 (57.1 %" in texts[".md"]
    assert "Said by its author." in texts[".md"]
    assert "4 of 7" in texts[".html"]
    assert all("20260207T123628Z" in text for text in texts.values())
    assert not any("sesame" in text for text in texts.values())
