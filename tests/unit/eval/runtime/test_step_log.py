"""The trace of a tool loop."""

from __future__ import annotations

import json
from pathlib import Path

from toolsim.eval.runtime.step_log import JsonLines


def test_each_step_is_one_line_at_once(tmp_path: Path) -> None:
    """A step can be read before the file is closed, and a second trace appends to the first."""
    path = tmp_path / "trace.jsonl"
    trace = JsonLines(path)
    trace({"step": "answer", "text": "two\nlines, ünicode"})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": "answer", "text": "two\nlines, ünicode"}
    ]
    trace.close()
    again = JsonLines(path)
    again({"step": "end"})
    again.close()
    assert len(path.read_text().splitlines()) == 2
