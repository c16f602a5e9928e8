"""Tests for recordings: their size is limited, they contain no secrets, and they can be replayed."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.io import read_flows_from_paths
from support.line import Line, Reply, arrivals
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend, stream_of
from support.recording import context
from support.wire import DONE, chat_frame
from toolsim.recordings.capture import dump
from toolsim.recordings.replay import recorded, replay_file

CALL = '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Bonn\\"}"}</tool_call>'
MEBIBYTE = 1024 * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captured")


@pytest.fixture(scope="module")
def proxy(backend: RawBackend, folder: Path) -> Iterator[Mitmdump]:
    with Mitmdump(backend.url, toolsim_capture=str(folder), toolsim_max_body_bytes=64 * MEBIBYTE) as proxy:
        yield proxy


def recorded_files(folder: Path, before: set[Path], count: int = 1) -> list[Path]:
    """Wait until ``count`` new exchanges have been recorded, and return their files."""
    end = time.monotonic() + 60
    while len(new := set(folder.glob("*.flow")) - before) < count:
        assert time.monotonic() < end, f"{len(new)} files of {count}"
        time.sleep(0.02)
    return sorted(new, key=lambda path: path.stat().st_mtime_ns)


def peak(pid: int) -> int:
    """Return the peak memory usage of a process, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.mark.extended
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("tools", [True, False], ids=["ours", "passing"])
def test_large_stream_recording_is_bounded(
    backend: RawBackend, proxy: Mitmdump, line: Line, folder: Path, ask: Any, tools: bool
) -> None:
    """Recording a 50 MB stream does not delay its first delta, and memory usage stays limited.

    The recording states how many bytes are missing.
    """
    seen_first = threading.Event()
    piece = chat_frame("word " * 13_000)  # A delta with 64 kB of text.

    async def behave(answer: Answer) -> None:
        await answer.head(Content_Type="text/event-stream")
        await answer.send(chat_frame("first"))
        assert await asyncio.to_thread(seen_first.wait, 10), "the first byte was held back"
        for _ in range(50 * MEBIBYTE // len(piece)):
            await answer.send(piece)
        await answer.send(chat_frame(finish="stop"))
        await answer.send(DONE)
        await answer.end()

    backend.play(behave)
    before, start = set(folder.glob("*.flow")), peak(proxy.pid)
    response = line.begin("POST", "/v1/chat/completions", ask(stream=True, **({} if tools else {"tools": []})))
    size = meanwhile = 0
    for _, data in arrivals(response):
        seen_first.set()
        size += len(data)
        if not meanwhile and size > 40 * MEBIBYTE:
            meanwhile = peak(proxy.pid)
    assert size > 49 * MEBIBYTE
    assert meanwhile - start < 30 * MEBIBYTE
    (file,) = recorded_files(folder, before)
    # When the exchange ends, up to 4 MiB of each side (client and backend) are joined, redacted and written to the
    # file.
    assert peak(proxy.pid) - start < 80 * MEBIBYTE
    assert file.stat().st_size < 9 * MEBIBYTE
    note = recorded(file)[0].metadata["toolsim_capture"]
    assert note["missing_bytes"]["backend"] > 40 * MEBIBYTE


PLANTED = {
    "bearer": "planted-bearer-8f3a",
    "cookie": "planted-cookie-77aa",
    "header": "planted-header-1b2c",
    "query": "planted-query-99zz",
    "field": "planted-field-5d5d",
    "nested": "planted-nested-0a0a",
    "openai": "sk-proj-PLANTEDopenai0123456789",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.PLANTEDsignature",
    "url": "planted-user:planted-pass",
    "setcookie": "planted-setcookie-3e3e",
    "argument": "planted-argument-4f4f",
}


@pytest.mark.parametrize("stream", [True, False])
def test_secrets_are_not_recorded(backend: RawBackend, line: Line, folder: Path, ask: Any, stream: bool) -> None:
    """Secrets of many types in the headers, query, body and answer are not recorded, even if deltas split them."""
    arguments = json.dumps({"city": "Bonn", "password": PLANTED["argument"]})
    block = f"<tool_call>{json.dumps({'name': 'get_weather', 'arguments': arguments})}</tool_call>"
    text = f"The key {PLANTED['openai']} and {PLANTED['bearer']}, {PLANTED['jwt']}. {block}"
    pieces = [text[start : start + 5] for start in range(0, len(text), 5)]

    async def behave(answer: Answer) -> None:
        fields = {"Set_Cookie": f"sid={PLANTED['setcookie']}; HttpOnly", "X_Request_Id": "planted-request"}
        if not stream:
            message = {"role": "assistant", "content": text}
            body = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
            await answer.whole(json.dumps(body).encode(), Content_Type="application/json", **fields)
            return
        await answer.head(Content_Type="text/event-stream", **fields)
        for piece in pieces:
            await answer.send(chat_frame(piece))
        await answer.send(chat_frame(finish="stop") + DONE)
        await answer.end()

    backend.play(behave)
    before = set(folder.glob("*.flow"))
    nested = json.dumps({"api_key": PLANTED["nested"], "see": f"https://{PLANTED['url']}@host/"})
    messages = [
        {"role": "user", "content": f"My token: {PLANTED['jwt']}\nand {nested}"},
        {"role": "user", "content": f"OPENAI_API_KEY={PLANTED['field']}"},
    ]
    asked = ask(
        stream=stream, messages=messages, metadata={"apiKey": PLANTED["field"], "authorization": "planted-auth"}
    )
    reply = line.post(
        f"/v1/chat/completions?api_key={PLANTED['query']}&v=1",
        asked,
        Authorization=f"Bearer {PLANTED['bearer']}",
        Cookie=f"sid={PLANTED['cookie']}",
        X_Api_Key=PLANTED["header"],
        X_Custom_Auth="planted-custom",
    )
    assert PLANTED["argument"] in reply.body.decode()
    (file,) = recorded_files(folder, before)
    data = file.read_bytes()
    for name, secret in PLANTED.items():
        assert secret.encode() not in data, name
    assert b"planted" not in data.lower()
    texts = []
    for flow in read_flows_from_paths([file]):
        assert flow.response is not None
        events = (flow.response.content or b"").split(b"data: ")
        texts += [deltas(json.loads(event)) for event in events if stream and event.startswith(b"{")]
    assert "planted" not in "".join(texts).lower()
    assert not stream or "The key sk-" in "".join(texts)


def deltas(chunk: dict[str, Any]) -> str:
    """Return the text and the call arguments in a chunk."""
    words = []
    for choice in chunk["choices"]:
        delta = choice["delta"]
        words.append(delta.get("content") or "")
        words += [call["function"].get("arguments", "") for call in delta.get("tool_calls", [])]
    return "".join(words)


def test_recorded_answer_is_served(backend: RawBackend, line: Line, folder: Path, ask: Any) -> None:
    """``mitmdump -S FILE`` answers a client with the recorded answer."""
    backend.play(stream_of("Let me look. ", CALL, CALL, " and a tail"))
    before = set(folder.glob("*.flow"))
    live = line.post("/v1/chat/completions", ask(stream=True))
    (file,) = recorded_files(folder, before)
    for mode in (None, "http://127.0.0.1:9"):
        with Mitmdump(mode, arguments=["-S", str(file)]) as replaying:
            with Line(replaying.url) as other:
                served = other.post("/v1/chat/completions", ask(stream=True), Authorization="Bearer another")
            assert served.status == 200
            assert without_ids(served) == without_ids(live)
            assert "get_weather" in served.body.decode()
            assert "and a tail" not in served.body.decode()


def without_ids(reply: Reply) -> list[Any]:
    return [event if event == "[DONE]" else event | {"id": ""} for event in reply.events()]


def test_replayed_flow_is_new(backend: RawBackend, ask: Any, tmp_path: Path) -> None:
    """If a flow from a flow file is replayed without a key, its request is rewritten again, and the backend gives a new
    answer.
    """
    saved, again, captured = tmp_path / "saved.flow", tmp_path / "again.flow", tmp_path / "captured"
    with Mitmdump(backend.url, arguments=["-w", str(saved)], toolsim_api_key="k") as first, Line(first.url) as line:
        for _ in range(2):
            backend.play(stream_of("The first run. ", CALL))
            line.post("/v1/chat/completions", ask(stream=True), Authorization="Bearer k")
    plain, edited = read_flows_from_paths([saved])
    words = json.loads(edited.request.content)
    words["messages"][-1]["content"] = "edited by hand"
    edited.request.content = json.dumps(words).encode()
    saved.write_bytes(dump([plain, edited]))

    backend.play(stream_of("The second run. ", CALL))
    backend.asked.clear()
    replayed = ["-C", str(saved), "-w", str(again)]
    replaying = Mitmdump(backend.url, arguments=replayed, toolsim_api_key="k", toolsim_capture=str(captured))
    assert replaying.exit_code() == 0
    first_body, second_body = (json.loads(asked.body) for asked in backend.asked)
    assert "CLIENT TOOL CATALOG" in first_body["messages"][0]["content"]
    assert second_body == words
    for flow in read_flows_from_paths([again]):
        assert b'"tool_calls"' in flow.response.content
        assert flow.metadata["toolsim"]["calls"] == ["get_weather"]
        flow.revert()
        assert json.loads(flow.request.content) == ask(stream=True)
        assert b"The second run." in flow.response.content
    unedited, _ = sorted(captured.glob("*.flow"))
    with context():
        result = replay_file(unedited)
    assert result.same, str(result)
