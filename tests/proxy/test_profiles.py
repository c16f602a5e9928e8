"""Tests for profiles: their effect on the prompt, and where the profile in use is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from proxy.conftest import CALL
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend, stream_of
from support.wire import chat_whole

PROFILE = """models = ["m"]
[options]
toolsim_manifest = "hermes"
[tuned]
toolsim = "0.0.1"
engine = "llama.cpp"
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's configuration folder, with a profile for the model ``m``."""
    (tmp_path / "toolsim" / "profiles").mkdir(parents=True)
    (tmp_path / "toolsim" / "profiles" / "mine.toml").write_text(PROFILE)
    return tmp_path


async def whole(answer: Answer) -> None:
    await answer.whole(chat_whole(CALL), Content_Type="application/json")


def asked(backend: RawBackend) -> list[Any]:
    return [json.loads(asked.body) for asked in backend.asked if asked.path.endswith("/chat/completions")]


def prompt(backend: RawBackend) -> str:
    return str(asked(backend)[-1]["messages"][0]["content"])


@pytest.mark.slow
def test_answer_names_its_profile(backend: RawBackend, own: Path, ask: Any) -> None:
    """The headers, the log and the metrics name the profile in use. Options that the user sets override the profile."""
    environment = {"XDG_CONFIG_HOME": str(own)}
    with Mitmdump(backend.url, environment=environment, toolsim_log="text") as proxy, Line(proxy.url) as line:
        backend.play(whole)
        assert line.post("/v1/chat/completions", ask()).headers["x-toolsim-profile"] == "mine"
        assert "<tools>" in prompt(backend)
        backend.play(stream_of(CALL))
        assert line.post("/v1/chat/completions", ask(stream=True)).headers["x-toolsim-profile"] == "mine"
        proxy.wait_for("· profile mine ·", count=2)
        backend.play(whole)
        assert "x-toolsim-profile" not in line.post("/v1/chat/completions", ask(model="other")).headers
        assert "<tools>" not in prompt(backend)
        text = line.request("GET", "/toolsim/metrics").body.decode()
        assert 'toolsim_profiles_total{profile="mine"} 2' in text
        # The warning is logged only once, although the profile is used several times.
        assert proxy.log().count("the profile mine applies, but it was measured with toolsim 0.0.1") == 1
    with (
        Mitmdump(backend.url, environment=environment, toolsim_manifest="auto") as proxy,
        Line(proxy.url) as line,
    ):
        backend.play(whole)
        assert line.post("/v1/chat/completions", ask()).headers["x-toolsim-profile"] == "mine"
        assert "<tools>" not in prompt(backend)


@pytest.mark.slow
def test_profile_enables_second_opinions(backend: RawBackend, own: Path, ask: Any) -> None:
    """A profile can enable second opinions. Only models that use the profile cause additional requests."""
    folder = own / "toolsim" / "profiles"
    (folder / "mine.toml").write_text('models = ["m"]\n[options]\ntoolsim_second_opinion = "on"\n')

    async def discreet(answer: Answer) -> None:
        """Answer with a call, then "no" to both second-opinion requests, and finally text."""
        turn = len(asked(backend))
        await answer.whole(chat_whole((CALL, "no", "no", "Hello!")[turn - 1]), Content_Type="application/json")

    with Mitmdump(backend.url, toolsim_profiles=str(folder)) as proxy, Line(proxy.url) as line:
        backend.play(discreet)
        reply = line.post("/v1/chat/completions", ask())
        message = json.loads(reply.body)["choices"][0]["message"]
        assert (message["content"], message.get("tool_calls")) == ("Hello!", None)
        assert reply.headers["x-toolsim-profile"] == "mine"
        assert len(asked(backend)) == 4
        backend.play(whole)
        reply = line.post("/v1/chat/completions", ask(model="other"))
        assert json.loads(reply.body)["choices"][0]["message"]["tool_calls"]
        assert len(asked(backend)) == 1
        text = line.request("GET", "/toolsim/metrics").body.decode()
        assert 'toolsim_profiles_total{profile="mine"} 1' in text


@pytest.mark.slow
def test_broken_profile_stops_the_start(backend: RawBackend, own: Path) -> None:
    """If a profile is invalid, the proxy does not start, and the error names the file and the line. If profiles are
    disabled, the proxy starts.
    """
    file = own / "toolsim" / "profiles" / "mine.toml"
    file.write_text('models = ["m"]\n[options]\ntoolsim_manifest = "herms"\n')
    environment = {"XDG_CONFIG_HOME": str(own)}
    proxy = Mitmdump(backend.url, environment=environment)
    assert proxy.exit_code() == 1
    assert f"toolsim_profiles: {file}:3: toolsim_manifest: got 'herms'" in proxy.log()
    with Mitmdump(backend.url, environment=environment, toolsim_profiles="off"):
        pass


@pytest.mark.slow
def test_declared_call_form_is_recognized(backend: RawBackend, own: Path, ask: Any) -> None:
    """The call form in a profile is recognized only in answers from models that use the profile. If the call form is
    invalid, the proxy does not start.
    """
    file = own / "toolsim" / "profiles" / "mine.toml"
    file.write_text(PROFILE + '[[forms]]\nopening = "@@CALL"\nclosing = "@@END"\n')
    text = CALL.replace("<tool_call>", "@@CALL").replace("</tool_call>", "@@END")

    async def declared(answer: Answer) -> None:
        await answer.whole(chat_whole(text), Content_Type="application/json")

    environment = {"XDG_CONFIG_HOME": str(own)}
    with Mitmdump(backend.url, environment=environment) as proxy, Line(proxy.url) as line:
        backend.play(declared)
        message = json.loads(line.post("/v1/chat/completions", ask()).body)["choices"][0]["message"]
        assert len(message["tool_calls"]) == 1
        backend.play(stream_of(text))
        assert b'"finish_reason":"tool_calls"' in line.post("/v1/chat/completions", ask(stream=True)).body
        backend.play(declared)
        other = json.loads(line.post("/v1/chat/completions", ask(model="other")).body)["choices"][0]["message"]
        assert (other["content"], other.get("tool_calls")) == (text, None)
    file.write_text(PROFILE + '[[forms]]\nopening = "@@CALL"\nclosing = "END"\n')
    proxy = Mitmdump(backend.url, environment=environment)
    assert proxy.exit_code() == 1
    assert f"toolsim_profiles: {file}:9: closing: got 'END'" in proxy.log()
