"""Tests for recording exchanges: the content and the name of the file, and the removal of private data."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.addons import view as flow_list
from mitmproxy.exceptions import CommandError, OptionsError
from mitmproxy.http import HTTPFlow
from mitmproxy.io import read_flows_from_paths
from mitmproxy.test import tflow
from support.recording import CALL, chat_answer, chat_stream, context, exchange, question, recording
from toolsim.core.policy import Policy
from toolsim.proxy.metadata import NOTE, REPORT, is_recorded, is_stored, recorded_policy
from toolsim.proxy.recorder import BoundedBuffer
from toolsim.recordings.capture import Capture, both_sides, write
from toolsim.recordings.commands import Commands


@pytest.fixture
def mitm(tmp_path: Path) -> Iterator[Any]:
    with context() as mitm:
        mitm.options.update(toolsim_capture=str(tmp_path))
        yield mitm


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read(path: Path) -> tuple[HTTPFlow, HTTPFlow]:
    backend, client = read_flows_from_paths([path])
    return backend, client


def test_both_sides_are_recorded(mitm: Any, tmp_path: Path) -> None:
    """A recording contains two exchanges, each marked with its side: the exchange with the backend and the exchange
    with the client.
    """
    kind, body = chat_stream("Hi. ", CALL)
    flow = exchange(question(stream=True), kind, body)
    assert files(tmp_path) == ["chat-stream-one-call-0001.flow"]
    backend, client = read(tmp_path / "chat-stream-one-call-0001.flow")
    note = {"options": {}, "refused": False, "missing_bytes": {}}
    assert backend.metadata == {NOTE: {"side": "backend", **note}}
    assert client.metadata == {NOTE: {"side": "client", **note}, REPORT: flow.metadata[REPORT]}
    assert json.loads(backend.request.content)["tools"]
    assert backend.response.content == body
    assert backend.response.headers["content-type"] == "text/event-stream"
    assert "tools" not in json.loads(client.request.content)
    assert b'"tool_calls"' in client.response.content
    assert is_stored(backend)
    assert not is_stored(client)


def test_machine_details_are_removed(mitm: Any, tmp_path: Path) -> None:
    """Addresses, dates, server names and random IDs are removed from recordings. As a result, recordings of the same
    exchange look the same on all machines.
    """
    for _ in range(2):
        flow = question()
        flow.client_conn.peername = ("10.1.2.3", 5555)
        flow.request.timestamp_start, flow.request.timestamp_end = 1764967971.0, 1764967971.25
        kind, body = chat_answer("Words.")
        exchange(flow, kind, body, Date="Fri", Server="nginx on host7")
    one, other = ((tmp_path / name).read_bytes() for name in files(tmp_path))
    rest = one.replace(b'"created": 1764967971', b"").replace(b'"created":1764967971', b"")
    for word in (b"10.1.2.3", b"127.0.0.1:4711", b"17649679", b"nginx", b"Linux", b"Fri"):
        assert word not in rest
    for port in (b"5555", b"4711"):
        # Times and random IDs can contain the same digits.
        assert not re.search(rb"(?<![\w.-])" + port + rb"(?![\w.-])", rest)
    backend, _ = read(tmp_path / files(tmp_path)[0])
    assert (backend.request.host, backend.request.port, backend.request.headers["host"]) == (
        "backend.test",
        80,
        "backend.test",
    )
    assert (backend.request.timestamp_start, backend.request.timestamp_end) == (0.0, 0.25)
    assert len(one) - len(other) in range(-60, 60)  # Only times and answer IDs can differ in length.
    assert read(tmp_path / files(tmp_path)[1])[0].id == backend.id


def test_secrets_are_hidden_on_both_sides(mitm: Any, tmp_path: Path) -> None:
    """A secret that appears on one side of a recording is masked on both sides, even in streams. The file does not
    contain any part of it.
    """
    flow = question(
        stream=True, path="/v1/chat/completions?api_key=planted-query", metadata={"password": "planted-body"}
    )
    flow.request.headers["authorization"] = "Bearer planted-bearer"
    call = json.dumps({"name": "get_weather", "arguments": {"city": "planted-bearer", "token": "planted-token"}})
    kind, body = chat_stream(*(f"<tool_call>{call}</tool_call> sk-plantedkey12345"), ended=True)
    exchange(flow, kind, body, Set_Cookie="sid=planted-cookie")
    (name,) = files(tmp_path)
    backend, client = read(tmp_path / name)
    assert b"planted" not in (tmp_path / name).read_bytes()
    content = "".join(
        json.loads(line[6:])["choices"][0]["delta"].get("content", "")
        for line in backend.response.content.decode().splitlines()
        if line.startswith("data: {")
    )
    assert content == f"<tool_call>{call}</tool_call> sk-plantedkey12345".replace("planted-bearer", "x" * 14).replace(
        "planted-token", "x" * 13
    ).replace("plantedkey12345", "x" * 15)
    arguments = json.dumps({"city": "x" * 14, "token": "x" * 13})
    assert json.dumps(arguments)[1:-1].encode() in client.response.content


@pytest.mark.parametrize(
    ("asked", "answer", "status", "name"),
    [
        ({}, CALL, 200, "chat-whole-one-call"),
        ({}, f"{CALL}\n{CALL}", 200, "chat-whole-two-calls"),
        ({}, CALL * 11, 200, "chat-whole-11-calls"),
        ({}, "Words.", 200, "chat-whole-no-calls"),
        ({"tools": []}, "Words.", 200, "chat-whole-passed"),
        ({"tools": [1]}, "Words.", 200, "chat-whole-refused"),
        ({}, "Words.", 429, "chat-whole-status-429"),
        ({"path": "/v1/responses", "input": "hi", "messages": None}, CALL, 200, "responses-over-chat-whole-one-call"),
    ],
)
def test_file_names_describe_the_exchange(
    mitm: Any, tmp_path: Path, asked: dict[str, Any], answer: str, status: int, name: str
) -> None:
    mitm.options.update(toolsim_backend="chat")
    for _ in range(2):
        exchange(question(**asked), *chat_answer(answer), status=status)
    assert files(tmp_path) == [f"{name}-0001.flow", f"{name}-0002.flow"]


def test_broken_stream_is_recorded_as_failed(mitm: Any, tmp_path: Path) -> None:
    """A stream that breaks off is recorded as a failure, although its HTTP status is 200."""
    exchange(question(stream=True), *chat_stream("Hi", ended=False))
    assert files(tmp_path) == ["chat-stream-failed-0001.flow"]


def test_refused_request_has_no_backend_answer(mitm: Any, tmp_path: Path) -> None:
    """If toolsim refuses a request, the backend's side of the recording has no answer."""
    exchange(question(tools=[1]), *chat_answer("never"))
    backend, client = read(tmp_path / "chat-whole-refused-0001.flow")
    assert backend.response is None
    assert client.response.status_code == 400
    assert backend.metadata[NOTE]["refused"] is True


def test_passing_streams_are_recorded(mitm: Any, tmp_path: Path) -> None:
    """If a request has no tools, toolsim passes on the answer's stream unchanged, but still records it."""
    kind, body = chat_stream("Hi.")
    exchange(question(stream=True, tools=[]), kind, body)
    backend, client = read(tmp_path / "chat-stream-passed-0001.flow")
    assert backend.response.content == client.response.content == body


def test_incomplete_answers_are_marked(mitm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an answer is too long to be recorded completely, the recording contains the number of bytes that are
    missing.
    """
    monkeypatch.setattr(BoundedBuffer.__init__, "__defaults__", (100,))
    exchange(question(stream=True, tools=[]), *chat_stream("x" * 1000))
    exchange(question(stream=True), *chat_stream("x" * 1000))
    for name in files(tmp_path):
        backend, _ = read(tmp_path / name)
        assert backend.metadata[NOTE]["missing_bytes"]["backend"] > 100, name


def test_compressed_bodies_are_decoded(mitm: Any, tmp_path: Path) -> None:
    """Compressed bodies are decompressed before they are recorded. Otherwise, secrets in them could not be
    recognized.
    """
    flow = question(tools=[])
    flow.request.raw_content = gzip.compress(json.dumps({"messages": [], "password": "planted"}).encode())
    flow.request.headers["content-encoding"] = "gzip"
    kind, _ = chat_answer("")
    exchange(flow, kind, gzip.compress(b'{"password": "planted"}'), Content_Encoding="gzip")
    backend, client = read(tmp_path / files(tmp_path)[0])
    assert json.loads(backend.request.raw_content)["password"] == "x" * 7
    assert backend.response.raw_content == client.response.raw_content == b'{"password":"xxxxxxx"}'
    assert "content-encoding" not in backend.request.headers


def test_files_are_private(mitm: Any, tmp_path: Path) -> None:
    """Only the owner of the file can read a recording, because it contains a conversation with a model."""
    exchange(question(), *chat_answer("Words."))
    assert stat.S_IMODE((tmp_path / files(tmp_path)[0]).stat().st_mode) == 0o600


def test_options_are_recorded_and_restored(mitm: Any, tmp_path: Path) -> None:
    """A recording contains all options with values other than the defaults. A replay restores their values, except for
    options that the user has set.
    """
    mitm.options.update(toolsim_sentinel="act", toolsim_tool_allowlist=["!b", "!a"])
    flow = exchange(question(), *chat_answer("Words."))
    assert flow.metadata[NOTE]["options"] == {"sentinel": "act", "tool_denylist": ["a", "b"]}
    backend, _ = read(tmp_path / files(tmp_path)[0])
    recorded = Policy(sentinel="act", tool_denylist=frozenset({"a", "b"}))
    assert recorded_policy(backend, Policy(repair="off"), ()) == recorded
    by_hand = recorded_policy(backend, Policy(sentinel="mine"), ["sentinel"])
    assert by_hand == Policy(sentinel="mine", tool_denylist=frozenset({"a", "b"}))


def test_unknown_recorded_options_are_ignored() -> None:
    """A replay ignores recorded options that are unknown or whose value has the wrong type."""
    flow = tflow.tflow()
    flow.metadata[NOTE] = {"side": "backend", "options": {"gone": 1, "sentinel": 5, "history": "sentinel"}}
    assert is_recorded(flow)
    assert recorded_policy(flow, Policy(), ()) == Policy(history="tagged")


def test_live_exchange_has_current_options() -> None:
    """A recording contains a note with the options of its exchange. A live flow that contains the same kind of note is
    not mistaken for a recording, so the current options apply to it.
    """
    flow = tflow.tflow()
    flow.metadata[NOTE] = {"options": {"history": "sentinel"}, "refused": False}
    assert not is_recorded(flow)


def test_off_by_default(tmp_path: Path) -> None:
    """Without the ``toolsim_capture`` option, no recordings are written."""
    with context() as mitm:
        assert mitm.options.toolsim_capture == ""
        flow = exchange(question(), *chat_answer("Words."))
    assert files(tmp_path) == []
    assert NOTE in flow.metadata  # The ``toolsim.capture`` command can still record the exchange.


def test_command_records_exchanges(tmp_path: Path) -> None:
    """The ``toolsim.capture`` command records finished exchanges. It refuses flows that were read from a recording."""
    capture = Capture()
    with context(capture):
        flow = exchange(question(), *chat_answer("Words."))
        with pytest.raises(CommandError, match="specify a folder"):
            capture.capture([flow])
        capture.capture([flow], str(tmp_path / "new"))
        assert files(tmp_path / "new") == ["chat-whole-no-calls-0001.flow"]
        with pytest.raises(CommandError, match="no finished toolsim exchange"):
            capture.capture([tflow.tflow()], str(tmp_path))
        with pytest.raises(CommandError, match="cannot be recorded again"):
            capture.capture(list(read(tmp_path / "new" / "chat-whole-no-calls-0001.flow"))[1:], str(tmp_path))
        (tmp_path / "file").write_text("")
        with pytest.raises(CommandError, match="file"):
            capture.capture([flow], str(tmp_path / "file"))


def test_console_commands_work(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With console commands, a user can record exchanges, replay the recordings, replace their words with pseudonyms,
    and replay the result.
    """
    caplog.set_level("INFO")
    view = flow_list.View()
    with context(view, Capture(), Commands()) as mitm:
        view.add([exchange(question(), *chat_answer("Paris."))])
        execute = mitm.master.commands.execute
        execute(f"toolsim.capture @all {tmp_path}")
        mitm.options.toolsim_capture = str(tmp_path)
        execute("toolsim.capture @focus")
        execute(f"toolsim.replay {tmp_path}")
        execute(f"toolsim.pseudonymise {tmp_path}")
        execute(f"toolsim.replay {tmp_path}")
    assert caplog.text.count("2 recorded exchanges, none differ") == 2
    assert all(b"Paris" not in (tmp_path / name).read_bytes() for name in files(tmp_path))


def test_invalid_folder_is_reported(tmp_path: Path) -> None:
    """If the folder for recordings cannot be created, the error names the option that sets it."""
    (tmp_path / "file").write_text("")
    capture = Capture()
    with context(capture) as mitm, pytest.raises(OptionsError, match="toolsim_capture"):
        mitm.options.update(toolsim_capture=str(tmp_path / "file"))


def test_full_disk_does_not_affect_exchanges(mitm: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If a recording cannot be written, the exchange is not affected, and the reason is logged."""
    capture = Capture()
    capture.configure({"toolsim_capture"})
    tmp_path.rmdir()
    tmp_path.write_text("in the way")
    flow = question()
    flow.metadata[NOTE] = {"options": {}, "refused": False}
    flow.response = tflow.tresp()
    capture.response(flow)
    assert "cannot record" in caplog.text


def test_aborted_exchanges_are_not_recorded(mitm: Any, tmp_path: Path) -> None:
    """An aborted exchange is not recorded, and the data that was buffered for it is released."""
    capture = Capture()
    capture.configure({"toolsim_capture"})
    flow = question(stream=True, tools=[])
    flow.metadata[NOTE] = {"options": {}, "refused": False}
    flow.response = tflow.tresp()
    flow.response.stream = True
    capture.responseheaders(flow)
    assert capture._passing
    capture.error(flow)
    assert not capture._passing
    assert files(tmp_path) == []


def test_single_side_cannot_be_recorded(mitm: Any, tmp_path: Path) -> None:
    """A flow that was read from a recording cannot be recorded again, because it is only one side of the exchange."""
    exchange(question(), *chat_answer("Words."))
    _, client = read(tmp_path / files(tmp_path)[0])
    with pytest.raises(ValueError, match="part of a recording"):
        both_sides(client)
    with pytest.raises(ValueError, match="part of a recording"):
        write(client, tmp_path)


def at_once(_: None, function: Callable[..., object], *arguments: object) -> asyncio.Future[object]:
    """Run the function immediately in the current thread, as a replacement for an executor."""
    future = asyncio.get_running_loop().create_future()
    try:
        future.set_result(function(*arguments))
    except OSError as problem:
        future.set_exception(problem)
    return future


async def test_writing_does_not_block_the_event_loop(mitm: Any, tmp_path: Path) -> None:
    """Recordings are written in another thread. When mitmproxy shuts down, it waits for files that are still being
    written.
    """
    capture = Capture()
    capture.configure({"toolsim_capture"})
    assert capture.done() is None
    for _ in range(40):
        flow = question()
        flow.metadata[NOTE] = {"options": {}, "refused": False}
        flow.response = tflow.tresp()
        capture.response(flow)
    waiting = capture.done()
    assert waiting is not None
    await waiting
    assert len(files(tmp_path)) == 40


@pytest.mark.parametrize("is_over", [False, True])
async def test_failing_thread_is_logged(
    mitm: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """If a recording cannot be written in the background thread, the error is logged before shutdown ends, even if the
    thread has already finished.
    """
    if is_over:
        monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", at_once)
    capture = Capture()
    capture.configure({"toolsim_capture"})
    tmp_path.rmdir()
    flow = question()
    flow.metadata[NOTE] = {"options": {}, "refused": False}
    flow.response = tflow.tresp()
    capture.response(flow)
    waiting = capture.done()
    assert waiting is not None
    await waiting
    assert "cannot record" in caplog.text


def test_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """While a recording is being written, its file has a random name. Otherwise, another user could make the proxy
    overwrite a file by means of a symbolic link.
    """
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "captured"
    folder.mkdir()
    for number in range(1, 4):
        (folder / f".chat-whole-1-call-000{number}.flow.part").symlink_to(victim)
        (folder / f".chat-whole-one-call-000{number}.flow.part").symlink_to(victim)
    with context():
        recording(folder)
    assert victim.read_text() == "mine"


def test_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is full, the unfinished recording is deleted, because it contains part of a conversation."""

    def full(self: Path, target: Path) -> Path:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with context(), pytest.raises(OSError, match="No space"):
        recording(tmp_path)
    assert list(tmp_path.iterdir()) == []
