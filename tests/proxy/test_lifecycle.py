"""Tests for loading, reloading, removing, configuring and stopping the addon in a mitmdump process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from proxy.conftest import CALL
from support.line import Line, arrivals
from support.mitmdump import ADDON, Mitmdump
from support.raw_backend import Answer, RawBackend, stream_of
from support.wire import DONE, chat_frame


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A copy of the script that a test can modify. The copy imports the installed package."""
    copy = tmp_path / "toolsim.py"
    shutil.copy(ADDON, copy)
    return copy


def touch(script: Path) -> None:
    later = time.time() + 5
    os.utime(script, (later, later))


def test_live_reload(script: Path, backend: RawBackend, ask: Any) -> None:
    """When the script is reloaded, the settings are kept, the stream in progress continues, and later requests
    succeed.
    """
    import asyncio

    may_continue = asyncio.Event()

    async def waits(answer: Answer) -> None:
        await answer.head(Content_Type="text/event-stream")
        await answer.send(chat_frame("Hi "))
        await asyncio.wait_for(may_continue.wait(), 20)
        for data in (chat_frame(CALL), chat_frame(finish="stop"), DONE):
            await answer.send(data)
        await answer.end()

    with Mitmdump(backend.url, script=script, toolsim_tool_allowlist="!nothing") as proxy:
        with Line(proxy.url) as line, Line(proxy.url) as other:
            backend.play(waits)
            response = line.begin("POST", "/v1/chat/completions", ask(stream=True))
            first = response.read1(65536)
            touch(script)
            proxy.wait_for("Loading script", count=2)
            backend._loop.call_soon_threadsafe(may_continue.set)
            rest = first + b"".join(data for _, data in arrivals(response))
            assert b'"get_weather"' in rest
            assert rest.endswith(DONE)
            backend.play(stream_of(CALL))
            for connection in (line, other):
                assert b'"get_weather"' in connection.post("/v1/chat/completions", ask(stream=True)).body
        assert len(proxy.log().split('"calls": ["get_weather"]')) == 4


def test_reload_restarts_the_builtin_backend(script: Path, ask: Any) -> None:
    """When the script is reloaded, the scripted backend is restarted."""
    with Mitmdump(script=script, toolsim_backend="scripted") as proxy:
        proxy.wait_for("scripted backend answers")
        touch(script)
        proxy.wait_for("scripted backend answers", count=2)
        question = [{"role": "user", "content": "What is the weather in Bonn?"}]
        with Line(proxy.url) as line:
            assert b'"get_weather"' in line.post("/v1/chat/completions", ask(stream=True, messages=question)).body


def test_removed_script_leaves_a_plain_proxy(script: Path, backend: RawBackend, ask: Any) -> None:
    """When the script is removed, mitmproxy forwards requests unchanged."""
    with Mitmdump(backend.url, script=script) as proxy, Line(proxy.url) as line:
        backend.play(stream_of(CALL))
        assert b'"get_weather"' in line.post("/v1/chat/completions", ask(stream=True)).body
        script.unlink()
        proxy.wait_for("Removing script")
        assert b"<tool_call>" in line.post("/v1/chat/completions", ask(stream=True)).body
        assert b'"tools"' in backend.asked[-1].body


def test_predecessors_variables_set_defaults(backend: RawBackend, ask: Any) -> None:
    """The environment variables of toolsim's predecessor determine the defaults of options. If a value is invalid, a
    warning names the variable.
    """
    environment = {"PROXY_OUTPUT_MODE": "obsidian-xml", "PROXY_TOOL_BLOCK_MAX": "many", "PROXY_STOP_AFTER_TOOLS": "1"}
    backend.play(stream_of("Hi ", CALL, " tail"))
    with Mitmdump(backend.url, environment=environment) as proxy, Line(proxy.url) as line:
        reply = line.post("/v1/chat/completions", ask(stream=True))
        assert b"<use_tool>" in reply.body
        assert b"tail" not in reply.body
        assert "PROXY_TOOL_BLOCK_MAX='many' is ignored" in proxy.log()


# An option with choices, a URL and a number. ``tests/unit/proxy/options`` covers all options.
BAD_OPTIONS = {"toolsim_backend": "gpt", "toolsim_upstream": "127.0.0.1:80", "toolsim_max_tool_bytes": "0"}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_invalid_option_stops_the_start(name: str) -> None:
    """If the value of an option is invalid, mitmdump exits, and the log names the option and the value."""
    proxy = Mitmdump("http://127.0.0.1:9", **{name: BAD_OPTIONS[name]})
    assert proxy.exit_code() == 1
    assert name in proxy.log()
    assert BAD_OPTIONS[name] in proxy.log()


def test_stop_is_clean(backend: RawBackend, ask: Any) -> None:
    """If mitmdump is stopped in the middle of a stream, it exits promptly and without errors."""

    async def hangs(answer: Answer) -> None:
        await answer.head(Content_Type="text/event-stream")
        await answer.send(chat_frame("Hi "))
        await answer.wait_until_gone()

    backend.play(hangs)
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        assert line.begin("POST", "/v1/chat/completions", ask(stream=True)).read1(10)
        started = time.monotonic()
    assert time.monotonic() - started < 5


def test_absolute_path_from_another_folder(backend: RawBackend, tmp_path: Path, ask: Any) -> None:
    """mitmdump can load the addon script by its absolute path from any folder, even if the package is not installed."""
    backend.play(stream_of(CALL))
    # The options -I and -S, together with an explicit path, hide the editable installation of toolsim, but not the
    # packages that it needs.
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    code = f"import sys; sys.path.append({packages!r}); from mitmproxy.tools.main import mitmdump; mitmdump()"
    command = (sys.executable, "-u", "-I", "-S", "-c", code)
    probe = subprocess.run(
        [*command[:-1], f"import sys; sys.path.append({packages!r}); import toolsim"], capture_output=True
    )
    assert b"ModuleNotFoundError" in probe.stderr
    with Mitmdump(backend.url, command=command, cwd=tmp_path) as proxy, Line(proxy.url) as line:
        assert b'"get_weather"' in line.post("/v1/chat/completions", ask(stream=True)).body
