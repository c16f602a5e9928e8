"""Tests that run the pytest plugin in a separate process, on another project's passing and failing tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from support.mitmdump import ROOT
from support.recording import context, recording
from toolsim.proxy.metadata import NOTE
from toolsim.recordings import pytest_plugin, server_replay

PLUGIN = "toolsim.recordings.pytest_plugin"

PROJECT = """
import json
import urllib.error
import urllib.request

import pytest

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}


def agent(base_url, words):
    body = {"model": "m", "messages": [{"role": "user", "content": words}], "tools": [WEATHER], "stream": False}
    request = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json", "authorization": "Bearer mine"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


def carefree_agent(base_url, words):
    try:
        return agent(base_url, words)
    except urllib.error.HTTPError:
        return None


def test_calls(toolsim_replay):
    served = toolsim_replay("recordings")
    for _ in range(2):
        (call,) = agent(served.base_url, "WORDS")["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def test_carefree(toolsim_replay):
    carefree_agent(toolsim_replay("recordings").base_url, "WORDS")


def test_same(toolsim_replay):
    toolsim_replay("recordings"OPTIONS).assert_same()


def test_of_something_else():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the folder of a project that contains one recorded exchange."""
    (tmp_path / "recordings").mkdir()
    with context():
        recording(tmp_path / "recordings")
    return tmp_path


def pytest_in(project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    installed = any(found.value == PLUGIN for found in entry_points(group="pytest11"))
    loaded = [] if installed else ["-p", PLUGIN]
    # These plugins of other packages take longer to import than the tests of the project take to run.
    foreign = [word for name in ("hypothesispytest", "langsmith_plugin") for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", ".", "-p", "no:cacheprovider", *foreign, *loaded]
    # If CI or BUILD_NUMBER is set, pytest repeats complete messages in its summary, so they could not be counted.
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    return subprocess.run(
        [*command, *options], cwd=project, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def agent_tests(project: Path, name: str, *, words: str = "hi", options: str = "") -> None:
    """Write a test file for an agent that asks the question ``words``. ``options`` contains additional arguments for
    the fixture.
    """
    (project / f"test_{name}.py").write_text(PROJECT.replace("WORDS", words).replace("OPTIONS", options))


@pytest.mark.slow
def test_unused_plugin_imports_nothing(tmp_path: Path) -> None:
    """If toolsim is installed, pytest loads its plugin in every run. The plugin imports no large packages until a test
    uses it.
    """
    (tmp_path / "test_other.py").write_text(
        "import sys\n\n\n"
        "def test_other(request):\n"
        f"    assert request.config.pluginmanager.is_registered(sys.modules[{PLUGIN!r}])\n"
        "    assert {'mitmproxy', 'jsonschema'} & sys.modules.keys() == set()\n"
        "    loaded = [name for name in sys.modules if name.startswith('toolsim.')]\n"
        f"    assert loaded == ['toolsim.recordings', {PLUGIN!r}]\n"
    )
    done = pytest_in(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.ci
@pytest.mark.slow
def test_recorded_requests_pass_and_changed_ones_fail(project: Path) -> None:
    """A recorded request is answered any number of times. A request that differs from the recording makes the test fail
    with a description of the difference.
    """
    agent_tests(project, "green")
    agent_tests(project, "question", words="ho")
    agent_tests(project, "manifest", options=', manifest="typescript"')
    done = pytest_in(project)
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert "3 failed, 9 passed" in output
    failed = {line.split()[1] for line in output.splitlines() if line.startswith("FAILED ")}
    assert failed == {"test_question.py::test_calls", "test_question.py::test_carefree", "test_manifest.py::test_same"}
    # The failure message names the closest recording and the difference, even if the client has ignored the error.
    place = (
        "No recorded exchange began with this request; the closest is chat-whole-one-call-0001.flow:\n"
        '  body.messages[0 user].content: got "ho", expected "hi"'
    )
    assert output.count(place) == 2, output
    # If the rewritten request or answer differs, the message gives the file name and the path of the difference.
    assert "chat-whole-one-call-0001.flow: 1 difference" in output
    assert "request.body.messages[0 system].content line 3: got " in output


@pytest.mark.slow
def test_unusable_settings_are_one_line(project: Path) -> None:
    """An unknown option, or a folder without recordings, causes a one-line error without a traceback."""
    agent_tests(project, "misspelt", options=', manifes="typescript"')
    (project / "test_empty.py").write_text((project / "test_misspelt.py").read_text().replace("recordings", "empty"))
    (project / "empty").mkdir()
    output = pytest_in(project).stdout
    assert "E   " not in output, "a traceback"
    assert output.count("toolsim_manifes: no such option; did you mean toolsim_manifest?\n") == 1, output
    assert f"toolsim_replay: no .flow file at {project / 'empty'}" in output


def test_plugin_is_an_entry_point() -> None:
    """The plugin is registered as a pytest entry point. Its copies of constants equal the constants in
    ``server_replay``.
    """
    config: Any = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert config["project"]["entry-points"]["pytest11"] == {"toolsim": PLUGIN}
    assert pytest_plugin.NOT_RECORDED == server_replay.NOT_RECORDED
    assert (pytest_plugin.NOTE, pytest_plugin.NORMALISE) == (NOTE, server_replay.NORMALISE)


def test_plugin_imports_little() -> None:
    """Importing the plugin does not import mitmproxy or jsonschema. This is important because pytest imports the plugin
    in every project.
    """
    program = f"import {PLUGIN}, sys; print(sorted({{name.split('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "'pytest'" in loaded
    assert "'mitmproxy'" not in loaded
    assert "'jsonschema'" not in loaded
