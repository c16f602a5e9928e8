"""Tests for the decisions that ``toolsim launch`` makes before it starts an agent program, and for how that program
ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.processes import is_running
from toolsim.cli import launch
from toolsim.cli.agents import AGENTS
from toolsim.cli.main import main
from toolsim.cli.probe import Answer
from toolsim.command_line import UsageError

OLLAMA, LM_STUDIO = "http://127.0.0.1:11434/v1", "http://127.0.0.1:1234/v1"


def models(*names: str) -> dict[str, Any]:
    return {"data": [{"id": name} for name in names]}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Mapping[str, Any]]:
    """A dict of simulated local servers, which maps URLs to JSON bodies. All other URLs are unreachable."""
    found: dict[str, Mapping[str, Any]] = {}

    def answer(url: str, key: str = "", seconds: float = 0.0) -> Answer | None:
        return Answer(200, "application/json", found[url]) if url in found else None

    monkeypatch.setattr(launch, "_answer", answer)
    return found


def test_local_server_is_chosen(servers: dict[str, Mapping[str, Any]], tmp_path: Path) -> None:
    """If no backend is given, Ollama is preferred to LM Studio. A server without a text model is not used."""
    codex = AGENTS["codex"]
    with pytest.raises(
        UsageError, match=r"^no backend found: no toolsim proxy is running, .*\. Specify one: toolsim launch codex http"
    ):
        launch._local_server(codex)
    servers[f"{LM_STUDIO}/models"] = models("text-embedding-nomic")
    with pytest.raises(
        UsageError, match=r"answers; LM Studio is running, but has no model\. Specify one: toolsim launch"
    ):
        launch._local_server(codex)
    servers[f"{LM_STUDIO}/models"] = models("text-embedding-nomic", "qwen")
    assert launch._local_server(codex) == LM_STUDIO
    servers[f"{OLLAMA}/models"] = models()
    assert launch._local_server(codex) == LM_STUDIO
    servers[f"{OLLAMA}/models"] = models("qwen")
    assert launch._local_server(codex) == OLLAMA


@pytest.mark.parametrize(
    ("wanted", "backend", "url", "is_it"),
    [
        ("http://localhost:9/v1", "", "http://127.0.0.1:9/v1", True),
        ("http://127.0.0.1:9", "", "http://127.0.0.1:9/v1", True),
        ("http://127.0.0.1:9/v1/", "", "http://127.0.0.1:9/v1", True),
        ("http://127.0.0.1:9/base/v1", "", "http://127.0.0.1:9/v1", False),
        ("http://127.0.0.1:8/v1", "", "http://127.0.0.1:9/v1", False),
        ("https://127.0.0.1:9/v1", "", "http://127.0.0.1:9/v1", False),
        ("http://127.0.0.1:9/v1", "", "", False),
        ("codex", "your Codex login", "", True),
        ("codex", "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1", False),
        ("models/m.gguf", "m.gguf", "", True),
        ("models/n.gguf", "m.gguf", "", False),
    ],
)
def test_running_toolsim_is_reused(
    wanted: str, backend: str, url: str, is_it: bool, servers: dict[str, Mapping[str, Any]]
) -> None:
    """A toolsim process that is already running is reused if its overview page names the requested backend. Different
    spellings of a URL are equivalent.
    """
    page = {"name": "toolsim", "requires_key": False, "backend": backend or url, "backend_url": url}
    servers["http://127.0.0.1:8080/toolsim/"] = page
    found = launch._find_running(Namespace(host="0.0.0.0", port=None, backend=wanted), "")
    assert found == (launch._Running("http://127.0.0.1:8080", backend or url) if is_it else None)


def test_page_of_another_program_is_not_toolsim(servers: dict[str, Mapping[str, Any]]) -> None:
    """If another program serves a page at ``/toolsim/``, it is not mistaken for toolsim."""
    servers["http://127.0.0.1:8080/toolsim/"] = {"name": "other"}
    assert launch._find_running(Namespace(host="127.0.0.1", port=8080, backend=None), "") is None


def test_settings_file_is_in_the_configuration_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings file is read from the user's configuration folder, never from the working directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    assert launch.settings_file() == Path("/c/toolsim/toolsim.toml")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert launch.settings_file() == Path("/h/.config/toolsim/toolsim.toml")


@pytest.mark.parametrize("name", AGENTS)
def test_missing_program_is_reported_with_its_install_command(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", name, OLLAMA]) == 2
    agent = AGENTS[name]
    assert capsys.readouterr().err == f"toolsim: {agent.title} is not installed: npm install -g {agent.package}\n"


def test_npm_packages_in_hints_are_tested() -> None:
    """All npm packages in installation hints are also used in the client tests."""
    clients = Path(__file__).parents[2] / "clients"
    files = [clients / folder / "package.json" for folder in ("agents", "node")]
    known = {name for file in files for name in json.loads(file.read_text())["dependencies"]}
    assert {agent.package for agent in AGENTS.values()} <= known


async def test_program_is_terminated_when_the_proxy_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the proxy ends, the launched program is terminated, even if it ignores SIGTERM."""
    pid_file = tmp_path / "pid"
    program = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1] + '_', 'w').write(str(os.getpid())); os.rename(sys.argv[1] + '_', sys.argv[1])\n"
        "time.sleep(60)"
    )
    monkeypatch.setattr(launch, "_KILL_SECONDS", 0.3)
    task = asyncio.create_task(launch.run_program([sys.executable, "-c", program, str(pid_file)], os.environ))
    while not pid_file.exists():
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(int(pid_file.read_text()))


async def test_program_that_cannot_be_executed_is_reported(tmp_path: Path) -> None:
    """If the program to launch cannot be executed, the error is one line without a traceback."""
    program = tmp_path / "codex"
    program.write_text("")
    with pytest.raises(launch.LaunchError, match=r"cannot run .*/codex \(Permission denied\)"):
        await launch.run_program([str(program)], {})
