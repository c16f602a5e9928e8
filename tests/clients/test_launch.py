"""``toolsim launch`` with the real programs. Each program writes a file when a text-only model calls its tool."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clients.cases import call
from support.command import TOOLSIM
from support.effort import parameters
from support.processes import members
from support.programs import AGENTS, NODE_CLIENTS, agent, codex
from support.text_backend import Exchange, TextBackend, Turn, says

# A run takes only a few seconds, but on a busy machine it takes half a minute to start the programs.
PATIENCE = 150.0

pytestmark = [pytest.mark.slow, pytest.mark.ci, pytest.mark.skipif(os.name == "nt", reason="signals of Unix")]

TEXT = 'heron & "ochre"\n'
COMMAND = "printf 'heron & \"ochre\"\\n' > out.txt; sleep 1"


@dataclass(frozen=True, slots=True)
class Program:
    """The arguments that make a program answer one question unattended, and a call that writes ``out.txt``."""

    question: tuple[str, ...]
    tool: str
    arguments: dict[str, Any]


PROGRAMS = {
    "codex": Program(
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        "exec_command",
        {"cmd": COMMAND},
    ),
    "claude": Program(("--dangerously-skip-permissions", "-p"), "Write", {"file_path": "OUT", "content": TEXT}),
    "opencode": Program(("run",), "write", {"filePath": "OUT", "content": TEXT}),
    "qwen": Program(("--yolo", "-p"), "write_file", {"file_path": "OUT", "content": TEXT}),
    "copilot": Program(("--allow-all-tools", "-p"), "bash", {"command": COMMAND, "description": "Write."}),
}


def programs(*quick: str) -> pytest.MarkDecorator:
    """Return a parametrization with all programs.

    `make test` runs only the programs in ``quick``, because each start takes several seconds.
    """
    return pytest.mark.parametrize("name", parameters(PROGRAMS, lambda name: name not in quick))


def needs(name: str) -> None:
    """Skip the test if the program is not installed."""
    if (codex() if name == "codex" else agent(name)) is None:
        pytest.skip(f"needs {name}: run `make test-clients`")


@pytest.fixture
def backend() -> Iterator[TextBackend]:
    """A backend with only the chat completions API, like most backends that need toolsim."""
    with TextBackend(apis=("chat",)) as backend:
        yield backend


class Launch:
    """Runs ``toolsim launch`` with a new home folder, in an empty working folder."""

    def __init__(self, folder: Path) -> None:
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        path = [*(str(place / "node_modules" / ".bin") for place in (AGENTS, NODE_CLIENTS)), os.environ["PATH"]]
        self.environment = {
            "PATH": os.pathsep.join(path),
            "HOME": str(self.home),
            "NO_COLOR": "1",
            "TERM": "dumb",
            # The program must not contact other servers. Claude Code refuses to run unattended as root outside a
            # sandbox.
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "IS_SANDBOX": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_PERMISSION": json.dumps({"edit": "allow", "bash": "allow"}),
        }

    def command(self, name: str, *arguments: str) -> list[str]:
        return [*TOOLSIM, "launch", name, *arguments, "--", *PROGRAMS[name].question, "Write it."]

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=self.environment,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, name: str, *arguments: str) -> tuple[int, str, str]:
        """Run the program; return its exit code, output and errors. Check that no process is left running."""
        process = self.start(self.command(name, *arguments))
        out, err = process.communicate(timeout=PATIENCE)
        assert members(process.pid) == []
        return process.returncode, out, err


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(tmp_path)


def writes(name: str, out: Path) -> Any:
    """Return the model's script: first a call that creates a file, then text.

    If a request does not declare the tool, the answer is only text.
    """
    program = PROGRAMS[name]
    arguments = {key: str(out) if value == "OUT" else value for key, value in program.arguments.items()}

    def answer(exchange: Exchange) -> Turn:
        prompt = "\n".join(text for _, text in exchange.transcript)
        if f'"{program.tool}"' not in prompt and f"{program.tool}(" not in prompt:
            return says("A title")
        return says("It is written.") if exchange.has_tool_output else says("I write.\n", call(program.tool, arguments))

    return answer


@programs("codex", "claude")
def test_program_writes_a_file_with_port_in_use(name: str, backend: TextBackend, launch: Launch) -> None:
    """The launched program writes the file and prints the model's text, even if toolsim's default port is in use."""
    needs(name)
    out = launch.work / "out.txt"
    backend.play(writes(name, out), chunk_size=7)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # The port might already be in use.
            stack.enter_context(socket.create_server(("127.0.0.1", 8080)))
        code, said, errors = launch.run(name, f"{backend.url}/v1")
    assert code == 0, said + errors
    assert "It is written." in said
    assert out.read_text() == TEXT
    assert {exchange.body["model"] for exchange in backend.exchanges} == {"text-model"}
    assert all(not exchange.body.get("tools") for exchange in backend.exchanges)


@programs("codex")
def test_exit_code_for_an_unknown_flag(name: str, backend: TextBackend, launch: Launch) -> None:
    """If the program rejects a flag, ``toolsim launch`` returns the same exit code as the program alone."""
    needs(name)
    command = [*launch.command(name, f"{backend.url}/v1", "--port", "0"), "--no-such-flag"]
    alone = [name, *command[command.index("--") + 1 :]]
    expected = subprocess.run(
        alone, env=launch.environment, cwd=launch.work, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    process = launch.start(command)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == expected.returncode != 0
    assert members(process.pid) == []


@programs("codex")
def test_ctrl_c(name: str, backend: TextBackend, launch: Launch) -> None:
    """Ctrl-C while the model is writing ends the program and the proxy, without a traceback."""
    needs(name)
    backend.play(lambda _: says("I ", "think", ending="hang"))
    process = launch.start(launch.command(name, f"{backend.url}/v1", "--port", "0"))
    try:
        backend.wait_for(1)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert members(process.pid) == []
    assert "Traceback" not in out + err
