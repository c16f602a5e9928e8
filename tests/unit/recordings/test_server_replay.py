"""Tests for answering requests from recordings: how the matching recording is found, and which flows are left to
mitmproxy's server replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.addons.serverplayback import ServerPlayback
from mitmproxy.http import HTTPFlow
from support.recording import context, question, recording
from toolsim.proxy.addon import ToolSim
from toolsim.recordings.server_replay import ServerReplay


class Stage:
    """toolsim's addons in the order in which they are loaded, followed by mitmproxy's server replay."""

    def __init__(self, mitm: Any, replay: ServerReplay, playback: ServerPlayback, path: Path) -> None:
        self.mitm = mitm
        self.playback = playback
        self.chain = [replay, mitm.master.addons.get("toolsim"), replay.handover, playback]
        playback.load_file(str(path))
        replay.running()

    def ask(self, flow: HTTPFlow) -> HTTPFlow:
        for hook in ("requestheaders", "request", "responseheaders", "response"):
            if hook == "responseheaders" and flow.response is None:
                ToolSim.exchanges.forget()
                break
            for addon in self.chain:
                if hasattr(addon, hook):
                    getattr(addon, hook)(flow)
        return flow


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    replay, playback = ServerReplay(), ServerPlayback()
    with context(replay, playback) as mitm:
        assert isinstance(mitm.master.addons.get("toolsim"), ToolSim)
        yield Stage(mitm, replay, playback, recording(tmp_path, path="/v1/chat/completions?api_key=first-key"))


def other_key() -> HTTPFlow:
    flow = question(path="/v1/chat/completions?api_key=quite-another-key")
    flow.request.headers["authorization"] = "Bearer whatever-it-is"
    return flow


def test_recorded_answer_is_used_once(stage: Stage) -> None:
    """A request is answered with the recorded answer, which is rewritten for the client. Each recording is used only
    once.
    """
    flow = stage.ask(question(path="/v1/chat/completions?api_key=first-key"))
    assert flow.response is not None
    assert flow.is_replay == "response"
    assert b'"tool_calls"' in (flow.response.content or b"")
    assert flow.metadata["toolsim"]["calls"] == ["get_weather"]
    assert stage.playback.count() == 0
    assert stage.ask(question()).response is None


def test_secrets_and_hosts_are_ignored(stage: Stage) -> None:
    """A request matches its recording even if the API key and the host are different."""
    flow = other_key()
    flow.request.host = "elsewhere"
    assert stage.ask(flow).response is not None


def test_reuse_allows_repeated_answers(stage: Stage) -> None:
    """With the ``server_replay_reuse`` option, a recording can be used any number of times."""
    stage.mitm.options.update(server_replay_reuse=True)
    for _ in range(3):
        assert stage.ask(other_key()).response is not None
        assert stage.playback.count() == 1


def test_only_the_backends_side_is_served(stage: Stage, tmp_path: Path) -> None:
    """Requests are answered with the backend's side of a recording, never with the client's side."""
    assert stage.playback.count() == 1
    stage.playback.load_file(str(recording(tmp_path, model="later")))
    flow = stage.ask(question(model="later"))
    assert flow.response is not None
    assert b'"tool_calls"' in (flow.response.content or b"")
    assert stage.playback.count() == 0


def test_addon_does_not_handle_updates() -> None:
    """The addon does not have an ``update`` hook, because mitmproxy would call it after every other hook."""
    assert not hasattr(ServerReplay(), "update")


def test_unrecorded_request_is_reported(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """A request without a matching recording is not answered. The log compares it with the closest recording."""
    flow = question(model="other", path="/v1/chat/completions?api_key=first-key")
    assert stage.ask(flow).response is None
    expected = 'the closest is a recording that was loaded manually:\n  body.model: got "other", expected "m"'
    assert expected in caplog.text
    assert stage.playback.count() == 1


def test_content_can_be_ignored(stage: Stage) -> None:
    """With the ``server_replay_ignore_content`` option, the body of a request is ignored when the matching recording is
    selected.
    """
    stage.mitm.options.update(server_replay_ignore_content=True)
    assert stage.ask(question(model="other", path="/v1/chat/completions?api_key=first-key")).response is not None


def test_listener_answers_from_a_recording(stage: Stage) -> None:
    """A request to toolsim's own listener is answered from a recording. If no recording matches, the client receives a
    404.
    """
    for flow, status in ((question(model="other"), 404), (other_key(), 200)):
        flow.client_conn.sockname = ("127.0.0.1", 4711)
        assert stage.ask(flow).response is not None
        assert flow.response is not None
        assert flow.response.status_code == status
        assert status == 200 or b'body.model: got \\"other\\"' in (flow.response.content or b"")


def test_closest_recording_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If no recording matches a request, the log shows the file name of the closest recording and the first
    differences.
    """
    replay, playback = ServerReplay(), ServerPlayback()
    with context(replay, playback) as mitm:
        far = recording(tmp_path, model="far", temperature=1.0)
        near = recording(tmp_path)
        mitm.options.update(server_replay=[str(far), str(near)])
        far.unlink()
        replay.running()
        more = {f"x{number}": number for number in range(9)}
        replay.request(question(model="other", **more))
    assert f'the closest is {near.name}:\n  body.model: got "other", expected "m"\n' in caplog.text
    assert caplog.text.rstrip().endswith("\n  and 5 more")


def test_recordings_without_toolsim_are_ignored(stage: Stage, tmp_path: Path) -> None:
    """Flows that were recorded without toolsim are left to mitmproxy's own server replay."""
    foreign = question(model="foreign")
    foreign.response = question().response
    stage.playback.add_flows([foreign])
    assert stage.playback.count() == 2
    assert stage.ask(question(model="third")).response is None
    assert stage.playback.count() == 2


def test_client_disconnect_withdraws_the_answer(stage: Stage) -> None:
    """If the client disconnects, the answer that was prepared for its request is removed from mitmproxy's server
    replay.
    """
    flow = other_key()
    stage.mitm.options.update(server_replay_reuse=True)
    for addon in stage.chain[:3]:
        if hasattr(addon, "requestheaders"):
            addon.requestheaders(flow)
    for addon in stage.chain[:3]:
        addon.request(flow)
    assert stage.playback.count() == 2
    stage.chain[2].error(flow)
    assert stage.playback.count() == 1


def test_flows_are_unchanged_without_recordings() -> None:
    replay = ServerReplay()
    with context(replay):
        flow = question()
        for addon in (replay, replay.handover):
            getattr(addon, "requestheaders", lambda _: None)(flow)
            addon.request(flow)
        assert flow.response is None
        assert flow.metadata == {}
