"""Tests for the recordings in flows/. Each can be replayed, however its bytes are split, and mitmdump can load it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import Response
from mitmproxy.io import read_flows_from_paths
from support.line import Line
from support.mitmdump import ADDON, CRASHES, Mitmdump
from support.recording import context
from toolsim.proxy.legacy import current_report
from toolsim.recordings.compare import IGNORED_REPORT, comparable, differences
from toolsim.recordings.pseudonymise import pseudonymise
from toolsim.recordings.replay import cut_by, recorded, replay_file, unanswerable

FLOWS = Path(__file__).parents[2] / "flows"
FILES = sorted(FLOWS.glob("*.flow"))
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)

CLIENTS = (
    "openai-python",
    "anthropic-python",
    "openai-node",
    "langchain",
    "ai-sdk",
    "agents",
    "pydantic-ai",
    "codex-function",
)
STORIES = (
    "codex-app-server",
    "two-calls",
    "strict-failure",
    "repair",
    "unknown-tool",
    "unterminated",
    "look-alike",
    "tail-cut",
    "status-429",
    "death",
    "use-tool",
    "obsidian-xml",
    "without-tools",
)


@pytest.fixture
def mitm() -> Iterator[Any]:
    with context() as mitm:
        yield mitm


def test_fixtures_are_complete_and_small() -> None:
    """The recordings cover each client, each story in ``STORIES`` and each pair of client and backend APIs. Their total
    size is less than 1 MB.
    """
    names = [path.stem for path in FILES]
    assert len(names) >= 24
    for word in (*CLIENTS, *(story for story in STORIES if story != "two-calls")):
        assert any(name.startswith(word) for name in names), word
    sides = set()
    for path in FILES:
        report = recorded(path)[1].metadata.get("toolsim", {})
        sides.add((report.get("client"), report.get("backend"), report.get("stream")))
    assert ("messages", "chat", True) in sides
    assert ("messages", "responses", False) in sides
    pairs = [(client, backend) for client in ("chat", "responses") for backend in ("chat", "responses")]
    assert {(*pair, stream) for pair in pairs for stream in (True, False)} - sides <= {("responses", "chat", False)}
    assert any(len(recorded(path)[1].metadata.get("toolsim", {}).get("calls", [])) == 2 for path in FILES)
    assert sum(path.stat().st_size for path in FILES) < 1_000_000


@every_file
def test_replay_equals_the_recording(mitm: Any, path: Path) -> None:
    """The replayed output equals the recorded output, whether the input arrives in one chunk or is split at random."""
    for cut in (None, 1, 2, 3):
        result = replay_file(path) if cut is None else replay_file(path, cut_by(random.Random(cut)))
        assert result.same, f"{result}\n(make replay UPDATE=1 accepts it)"


@every_file
def test_fixtures_name_no_machine(path: Path) -> None:
    """A recording contains no path or address of the machine on which it was made, and no certificate."""
    data = path.read_bytes()
    for word in (b"/tmp/", b"/root/", b"site-packages", str(FLOWS.parent).encode(), b"mitmproxy", b"BEGIN CERT"):
        assert word not in data, word


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("with_addon", [False, True], ids=["plain", "addon"])
def test_mitmdump_reads_every_fixture(tmp_path: Path, with_addon: bool) -> None:
    """``mitmdump -nr`` reads every recording. With the addon, the output equals the recorded output. Without the addon,
    flows are unchanged.
    """
    together, written = tmp_path / "all.flow", tmp_path / "written.flow"
    together.write_bytes(b"".join(path.read_bytes() for path in FILES))
    command = [sys.executable, "-c", "from mitmproxy.tools.main import mitmdump; mitmdump()"]
    command += ["-nr", together, "-w", written, "--set", "flow_detail=1", "--set", f"confdir={tmp_path}"]
    command += ["-s", ADDON] if with_addon else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert not CRASHES.search(done.stdout + done.stderr)
    read = {flow.id: flow for flow in read_flows_from_paths([written])}
    for path in FILES:
        backend, client = recorded(path)
        assert client.response is None or client.id in read, path.stem
        if backend.response is None:
            continue
        expected = client if with_addon else backend
        ours, theirs = comparable(read[backend.id], like=expected), comparable(expected)
        if with_addon:
            # When a stream is loaded from a file, it is rewritten in one piece. So its headers differ, but its events
            # are the same.
            for side in (ours, theirs):
                side.get("response", {}).pop("headers", None)
        else:
            assert comparable(read[client.id]) == comparable(client)
        found = [str(difference) for difference in differences(ours, theirs)]
        assert not found, f"{path.stem}: {found}"


@pytest.mark.slow
def test_mitmdump_serves_recorded_answers() -> None:
    """``mitmdump -S`` answers each recorded request with the recorded answer."""
    served = [path for path in FILES if not unanswerable(*recorded(path))]
    arguments = [word for path in served for word in ("-S", str(path))]
    with Mitmdump(arguments=arguments, keepserving=True) as proxy:
        for path in served:
            backend, client = recorded(path)
            request = backend.request
            headers = {
                key: value for key, value in request.headers.items() if key.lower() not in ("host", "content-length")
            }
            with Line(proxy.url) as line:
                reply = line.request("POST", request.path, request.content, **headers)
            made, response = client.copy(), client.response
            assert response is not None
            made.response = Response.make(reply.status, reply.body, {"content-type": reply.headers["content-type"]})
            ours, theirs = comparable(made)["response"], comparable(client)["response"]
            ours.pop("headers")
            theirs.pop("headers")
            found = [str(difference) for difference in differences(ours, theirs)]
            assert not found, f"{path.stem}: {found}"


@every_file
def test_pseudonymized_recording_replays(mitm: Any, tmp_path: Path, path: Path) -> None:
    """A pseudonymized recording contains none of the original text. It can still be replayed, with the same report."""
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    before = recorded(copy)
    pseudonymise(copy, b"key")
    after = recorded(copy)
    assert replay_file(copy).same
    for word in (b"Paris", b"weather station", b"sky over", b"Let me look"):
        assert word not in copy.read_bytes()
    if not unanswerable(*before):
        found = [current_report(side[1].metadata.get("toolsim", {})) for side in (before, after)]
        known = found[0].keys() & found[1].keys() - IGNORED_REPORT
        reports = [{key: report[key] for key in known} for report in found]
        assert reports[0] == reports[1]
