"""Tests for reading recorded turns in all APIs, and for excluding recordings that are not complete turns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.mitmdump import ROOT
from support.recording import chat_answer, context, exchange, question, recording
from toolsim.recordings.capture import dump, write
from toolsim.recordings.stored import recorded
from toolsim.recordings.turns import Unusable, is_failed, read_turn, read_turns


def test_recordings_of_real_clients_are_read() -> None:
    """Each recording of a real client is either read as a turn or excluded with a one-line reason."""
    files = sorted((ROOT / "flows").glob("*.flow"))
    turns, left_out = read_turns(files)
    assert len(turns) + len(left_out) == len(files)
    assert all(reason and "\n" not in reason for reason in left_out.values())
    assert {turn.api.name for turn in turns} == {"responses", "chat", "messages"}
    for turn in turns:
        names = {f"{tool.namespace}.{tool.wire_name}" if tool.namespace else tool.wire_name for tool in turn.tools}
        assert len(turn.reply.calls) == len(turn.report.get("calls", ())), turn.path
        assert {call.name for call in turn.reply.calls} <= {tool.name for tool in turn.tools}, (turn.path, names)
        assert turn.reply.calls or turn.reply.text, turn.path
    assert Counter(turn.kind for turn in turns)["call wanted"] > 20


def test_other_files_are_not_turns(tmp_path: Path) -> None:
    """Failed or incomplete answers, individual rounds and damaged files are refused, and the error states the
    reason.
    """
    with context():
        path = recording(tmp_path)
        (tmp_path / "refused").mkdir()
        refused = write(exchange(question(tools="none"), *chat_answer("")), tmp_path / "refused")
        failed = write(exchange(question(), "application/json", b'{"error": {"message": "no"}}', 503), tmp_path)
    backend, client = recorded(path)

    def reason(note: dict[str, Any] | None = None, **report: Any) -> str:
        backend.metadata["toolsim_capture"] |= note or {}
        client.metadata["toolsim"] |= report
        path.write_bytes(dump([backend, client]))
        with pytest.raises(Unusable) as raised:
            read_turn(path)
        return str(raised.value)

    assert read_turn(path).reply.calls[0].name == "get_weather"
    assert reason(error="backend_truncated") == "the answer failed: backend_truncated"
    assert reason(error=None, retries=["NO_CALL"]) == "the model was retried"
    assert reason({"missing_bytes": {"backend": 5}}, retries=[]) == "the answer was too long to be recorded completely"
    assert reason({"missing_bytes": {}, "round": {"number": 2}}).startswith("the recording is an internal round")
    with pytest.raises(Unusable, match="refused"):
        read_turn(refused)
    with pytest.raises(Unusable, match="HTTP 503"):
        read_turn(failed)
    path.write_bytes(path.read_bytes()[:300])
    assert list(read_turns([path, tmp_path / "none.flow"])[1]) == [path, tmp_path / "none.flow"]


@pytest.mark.parametrize(
    ("output", "failed"),
    [
        ("Error: no such city", True),
        ("Traceback (most recent call last):\n…", True),
        ('{"error": "no such city"}', True),
        ('{"ok": false}', True),
        ('{"isError": true}', True),
        ('"Error: no such city"', True),
        ('{"error": null, "celsius": 18}', False),
        ('{"ok": true}', False),
        ("18 degrees, without error", False),
        ("[]", False),
        ("", False),
    ],
)
def test_failed_tool_is_recognized(output: str, failed: bool) -> None:
    """A tool output counts as a failure if its text begins like an error message, or if one of its fields indicates an
    error.
    """
    assert is_failed(output) == failed


@pytest.mark.parametrize("stream", [False, True])
def test_turns_are_classified(tmp_path: Path, stream: bool) -> None:
    """A turn that follows a failed tool output is of the kind "after an error". Otherwise, the kind depends on whether
    the answer contains a call.
    """
    made = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    failed: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c", "content": "Error: no city"},
    ]
    later = [*failed, {"role": "assistant", "content": "Which city?"}, {"role": "user", "content": "Bonn"}]
    with context():
        assert read_turn(recording(tmp_path, stream=stream)).kind == "call wanted"
        assert read_turn(recording(tmp_path, stream=stream, text="Hello.")).kind == "answer wanted"
        assert read_turn(recording(tmp_path, stream=stream, messages=failed)).kind == "after an error"
        assert read_turn(recording(tmp_path, stream=stream, messages=later)).kind == "call wanted"
