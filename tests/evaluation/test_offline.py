"""``make eval``: all scenarios, offline, with the addon in a real mitmdump."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from toolsim.eval.scenarios import SCENARIOS

COMMAND = [sys.executable, "-m", "toolsim.eval"]


@pytest.mark.slow
@pytest.mark.extended
def test_scenarios_pass_over_both_apis_streamed_or_not(tmp_path: Path) -> None:
    """All scenarios pass over both APIs, streamed or not, and the report files are written."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENROUTER_")}
    # The base URL in the environment must not turn the run into a live evaluation, and the proxy must reach no other
    # server.
    environment |= {"OPENROUTER_BASE_URL": "http://192.0.2.1/v1", "OPENROUTER_API_KEY": "sk-or-v1-never-sent"}
    command = [*COMMAND, "--offline", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    for line in (done.stdout.splitlines()[0], done.stdout.splitlines()[-1]):
        assert line.startswith("the scripted provider (offline)")
    [folder] = tmp_path.iterdir()
    report = json.loads((folder / "report.json").read_text())
    count = 4 * len(SCENARIOS)
    assert report["overall"] == {
        "runs": count,
        "ok": count,
        "percent": 100.0,
        "interval": report["overall"]["interval"],
    }
    assert report["planned"] == count
    assert all("never-sent" not in file.read_text() for file in folder.iterdir())
    runs = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert {run["cell"]["method"] for run in runs} == {"toolsim"}
    # The recorded prompt is the prompt that the backend received, with the tools as text.
    shown = next(run for run in runs if run["case"] == "happy_path")["steps"][0]["shown"]
    assert any("CLIENT TOOL CATALOG" in text for _, text in shown)
