"""Tests for replaying recordings. There are no differences unless the code has changed. Each difference is reported
with its path.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toolsim.request.manifest
import toolsim.request.record
import toolsim.wire.chat.writer
import toolsim.wire.ids
import toolsim.wire.responses.event_stream
from mitmproxy.exceptions import CommandError
from support.recording import CALL, chat_answer, chat_stream, context, exchange, question, recording
from toolsim.proxy.metadata import NOTE
from toolsim.recordings.capture import dump, write
from toolsim.recordings.commands import Commands
from toolsim.recordings.replay import cut_by, main, recorded, replay_file, summary


@pytest.fixture(autouse=True)
def mitm(tmp_path: Path) -> Iterator[Any]:
    with context() as mitm:
        yield mitm


@pytest.fixture
def stream(tmp_path: Path, mitm: Any) -> Path:
    """Return the recording of a Responses API answer that was streamed from a chat completions backend. Its request has
    a history.
    """
    mitm.options.update(toolsim_backend="chat")
    history = [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "fc_001", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "fc_001", "output": 'line\n"two"'},
    ]
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    path = recording(tmp_path, stream=True, path="/v1/responses", input=history, messages=None, tools=[tool])
    mitm.options.reset()
    return path


def lines(path: Path) -> list[str]:
    return [str(difference) for difference in replay_file(path).differences]


@pytest.mark.parametrize("is_stream", [False, True])
def test_unchanged_code_has_no_differences(tmp_path: Path, is_stream: bool) -> None:
    """As long as the code has not changed, a replay has no differences, regardless of how the backend's bytes are
    split.
    """
    path = recording(tmp_path, stream=is_stream)
    for seed in range(20):
        result = replay_file(path, cut_by(random.Random(seed)))
        assert result.same, result
    assert str(result) == f"{path}: same"


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        '<tool_call>{"name":"get_weather","arguments":{"city":"Bonn","page_token":null}}</tool_call>',
        '<tool_call>{"name":"get_weather","arguments":"{\\"token\\":204501}"}</tool_call>',
        "<use_tool><name>get_weather</name><token>hunter2</token></use_tool>",
        "<use_tool><name>get_weather</name><token><![CDATA[hunter2]]></token></use_tool>",
        "<tool_call>\n<function=get_weather>\n<parameter=token>\nhunter2\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>get_weather\n<arg_key>token</arg_key>\n<arg_value>hunter2</arg_value>\n</tool_call>",
        '<function_calls><invoke name="get_weather"><parameter name="token">hunter2</parameter></invoke>'
        "</function_calls>",
        '<|python_start|>[get_weather(city="Bonn", page_token=None)]<|python_end|>',
        '<|tool_call>call:get_weather{token:<|"|>hunter2<|"|>}<tool_call|>',
    ],
)
def test_secret_argument_causes_no_difference(tmp_path: Path, call: str, is_stream: bool) -> None:
    """If the name of an argument indicates a secret, its value is masked on both sides of the recording. A replay then
    has no differences, regardless of the call form.
    """
    path = recording(tmp_path, stream=is_stream, text=call)
    assert "one-call" in path.name
    assert b"hunter2" not in path.read_bytes()
    assert b"204501" not in path.read_bytes()
    result = replay_file(path)
    assert result.same, result


@pytest.mark.parametrize("is_stream", [False, True])
def test_invented_call_is_replayed_as_written(tmp_path: Path, mitm: Any, is_stream: bool) -> None:
    """In a replay, the model cannot be queried again about a call to an undeclared tool. Therefore, the model's answer
    is replayed as the model wrote it.
    """
    mitm.options.update(toolsim_second_opinion="off")
    text = '{"name": "greet", "arguments": {}}'
    kind, body = chat_stream(text[:9], text[9:]) if is_stream else chat_answer(text)
    path = write(exchange(question(stream=is_stream), kind, body), tmp_path)
    mitm.options.reset()
    assert b"greet" in recorded(path)[1].response.content  # type: ignore[union-attr, operator]
    for seed in range(5):
        for by_hand in ((), ("toolsim_second_opinion",)):
            result = replay_file(path, cut_by(random.Random(seed)), by_hand=by_hand)
            assert result.same, result


def test_recorded_options_apply(stream: Path) -> None:
    """A replay applies the options in the recording, such as the backend's API."""
    assert replay_file(stream).same


def test_explicit_options_override_recorded_ones(stream: Path, mitm: Any) -> None:
    """An option that the user sets overrides the recorded value, so that a replay shows the effect of the option."""
    mitm.options.update(toolsim_sentinel="act")
    assert any("request.body.messages" in line and "act" in line for line in lines(stream))


def test_wrong_event_name_is_reported(stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an event has the wrong name, the reported difference gives the number of the event and both names."""
    event_stream = toolsim.wire.responses.event_stream
    head_of, name = event_stream.head_of, "response.function_call_arguments.done"
    monkeypatch.setattr(
        event_stream, "head_of", lambda *event: head_of(*event).replace(f"event: {name}\n", "event: other\n")
    )
    (line,) = lines(stream)
    assert line.startswith("response.events[")
    assert "response.function_call_arguments.done].event: got" in line
    assert 'got "other", expected "response.function_call_arguments.done"' in line


def test_changed_id_format_is_reported(stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the format of item IDs has changed, a difference is reported for each field that contains such an ID."""
    monkeypatch.setattr(toolsim.wire.ids, "RESPONSES_PREFIXES", {"function": "call"})
    found = lines(stream)
    assert any("response.output_item.added].data.item.id: got" in line for line in found)
    assert all("call_002" in line and "fc_002" in line for line in found)


def test_restarted_ids_are_reported(stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If call numbers start again at 1 instead of continuing after the calls in the history, a difference is
    reported.
    """
    monkeypatch.setattr("toolsim.request.rewrite.first_number", lambda request: 1)
    assert any('got "fc_001", expected "fc_002"' in line for line in lines(stream))


def test_malformed_random_ids_are_reported(stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random IDs are ignored in a comparison only if they have the correct format."""
    monkeypatch.setattr("secrets.token_hex", lambda size: "Z" * 2 * size)
    assert any("response.created].data.response.id: got" in line for line in lines(stream))


def test_changed_manifest_line_is_reported(stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a line of the manifest changes, the reported difference gives the position of the message and the number of
    the line.
    """
    monkeypatch.setattr(toolsim.request.manifest, "CLOSING", "The client runs nothing.")
    (line,) = lines(stream)
    assert line.startswith("request.body.messages[0 system].content line ")
    assert "The client runs nothing." in line
    assert "The client runs your calls" in line


def test_missing_escape_is_reported(stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a tool output is no longer escaped, the reported difference gives the position of the message and the
    output.
    """
    monkeypatch.setattr(toolsim.request.record, "json_line", lambda text: text)
    found = [line for line in lines(stream) if "function_call_output" in line]
    assert found
    assert found[0].startswith("request.body.messages[")
    assert r"output=\"line\\n" in found[0]


def test_changed_report_is_reported(tmp_path: Path) -> None:
    """A replay also shows differences between the recorded report and the new report."""
    path = recording(tmp_path)
    backend, client = recorded(path)
    assert backend.response is not None
    backend.response.raw_content = chat_answer("Words.")[1]
    path.write_bytes(dump([backend, client]))
    assert 'report.calls[0]: got nothing, expected "get_weather"' in lines(path)


def test_update_writes_the_new_result(stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update writes the new result to the recording and reports the differences. The recorded IDs, times and
    duration are kept.
    """
    before = recorded(stream)[1]
    monkeypatch.setattr(toolsim.wire.ids, "RESPONSES_PREFIXES", {"function": "call"})
    result = replay_file(stream, update=True)
    assert result.differences
    assert replay_file(stream).same
    after = recorded(stream)[1]
    assert before.response is not None
    assert after.response is not None
    assert before.response.content is not None
    assert after.response.content == before.response.content.replace(b"fc_002", b"call_002")
    assert after.metadata["toolsim"]["seconds"] == before.metadata["toolsim"]["seconds"]


def test_update_without_differences_writes_nothing(stream: Path) -> None:
    before = stream.read_bytes()
    assert replay_file(stream, update=True).same
    assert stream.read_bytes() == before


def test_refused_requests_can_be_replayed(tmp_path: Path) -> None:
    path = write(exchange(question(tools=[1]), *chat_answer("never")), tmp_path)
    assert replay_file(path).same


def test_passing_requests_can_be_replayed(tmp_path: Path) -> None:
    """The exchange for a request without tools, which toolsim passes on unchanged, can be replayed."""
    for number, (kind, body) in enumerate((chat_stream("Hi."), chat_answer("Hi."))):
        path = write(exchange(question(stream=not number, tools=[]), kind, body), tmp_path)
        assert replay_file(path).same


def test_broken_streams_can_be_replayed(tmp_path: Path) -> None:
    """A stream that broke off can be replayed, as can a stream that toolsim ended after a call."""
    for texts, ended in ((["Hi", CALL[:20]], False), ([CALL, " and so on", " and on"], True)):
        path = write(exchange(question(stream=True), *chat_stream(*texts, ended=ended)), tmp_path)
        result = replay_file(path)
        assert result.same, result


def test_incomplete_recording_is_compared_in_part(tmp_path: Path) -> None:
    """If a recording does not contain the complete backend answer, only the request is compared, and a note states the
    reason.
    """
    path = recording(tmp_path)
    backend, client = recorded(path)
    backend.metadata[NOTE]["missing_bytes"] = {"backend": 5}
    path.write_bytes(dump([backend, client]))
    assert "too long" in str(replay_file(path))
    backend.metadata[NOTE]["missing_bytes"] = {}
    client.metadata["toolsim"]["error"] = "backend_timeout"
    path.write_bytes(dump([backend, client]))
    assert "stopped sending data" in str(replay_file(path))
    backend.response = None
    path.write_bytes(dump([backend, client]))
    result = replay_file(path)
    assert result.same
    assert "did not answer" in str(result)


def test_invalid_files_are_reported(tmp_path: Path) -> None:
    """A file that is not a recording is reported as a problem. It does not raise an exception."""
    (tmp_path / "a.flow").write_bytes(b"")
    (tmp_path / "b.flow").write_bytes(b"nonsense")
    for name in ("a.flow", "b.flow", "none.flow"):
        assert replay_file(tmp_path / name).problem
    assert not replay_file(tmp_path / "a.flow").same


def test_command_logs_the_differences(
    tmp_path: Path, stream: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The ``toolsim.replay`` command writes a summary and the differences to mitmproxy's log."""
    caplog.set_level("INFO")
    replay = Commands()
    replay.replay(str(tmp_path))
    assert "1 recorded exchange, none differ" in caplog.text
    monkeypatch.setattr(toolsim.wire.ids, "RESPONSES_PREFIXES", {"function": "call"})
    replay.replay(str(stream))
    assert "1 recorded exchange, 1 differs" in caplog.text
    assert "call_002" in caplog.text
    (tmp_path / "empty").mkdir()
    with pytest.raises(CommandError, match=r"no \.flow file"):
        replay.replay(str(tmp_path / "empty"))


def test_summary_of_an_empty_replay() -> None:
    assert summary([]) == "0 recorded exchanges, none differ"


def test_main_exit_codes(stream: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code of ``toolsim replay`` is 0 if there are no differences or the files were updated, 1 if there are
    differences, and 2 for incorrect usage.
    """
    assert main([str(stream.parent), "--cut", "1"]) == 0
    monkeypatch.setattr(toolsim.wire.ids, "RESPONSES_PREFIXES", {"function": "call"})
    assert main([str(stream)]) == 1
    assert "expected" in capsys.readouterr().out
    assert main([str(stream), "--update"]) == 0
    assert "expected" in capsys.readouterr().out
    assert main([str(stream)]) == 0
    capsys.readouterr()
    assert main([str(stream.parent), str(stream.parent / "nothing")]) == 2
    assert capsys.readouterr() == ("", f"{stream.parent / 'nothing'}: no such file or folder\n")
    stream.unlink()
    assert main([str(stream.parent)]) == 2


def test_main_accepts_explicit_options(stream: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An option that the user sets overrides the recorded value, even if the user's value is the default."""
    assert main([str(stream), "--set", "toolsim_manifest=schemas"]) == 1
    assert "request.body.messages[0 system].content line" in capsys.readouterr().out
    assert main([str(stream), "--set", "toolsim_manifest=schemas", "--update"]) == 0
    backend, client = recorded(stream)
    backend.metadata["toolsim_capture"]["options"]["manifest"] = "schemas"
    stream.write_bytes(dump([backend, client]))
    assert main([str(stream)]) == 0
    assert main([str(stream), "--set", "toolsim_manifest=auto"]) == 1


def test_main_writes_junit_xml(
    tmp_path: Path, stream: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``--junit``, the results are also written to an XML file for CI systems."""
    report = tmp_path / "junit.xml"
    assert main([str(stream), "--junit", str(report)]) == 0
    assert 'failures="0"' in report.read_text()
    monkeypatch.setattr(toolsim.wire.ids, "RESPONSES_PREFIXES", {"function": "call"})
    assert main([str(stream), "--junit", str(report)]) == 1
    assert 'failures="1"' in report.read_text()


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_estimated_usage_is_not_compared(tmp_path: Path, mitm: Any, path: str, is_stream: bool) -> None:
    """Estimated token counts are not compared. They depend on the text, which changes when secrets are masked in the
    recording.
    """
    mitm.options.update(toolsim_backend="chat")
    said = [{"role": "user", "content": "my password: hunter2 hunter3 hunter4"}]
    turn = {"input": said, "messages": None} if path == "/v1/responses" else {"messages": said}
    result = replay_file(recording(tmp_path, stream=is_stream, path=path, text=f"token: hunter2345678 {CALL}", **turn))
    assert result.same, result
