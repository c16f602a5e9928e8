"""Agent programs as clients: opencode, Copilot CLI and Qwen Code run tools in a loop of several steps.

Their requests have long instructions and many large tools (16,000 to 40,000 characters of schemas). Obsidian Copilot 4
also runs opencode in its Agent Chat.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clients.cases import MODEL, Stage, call, transcript
from support.mitmdump import Mitmdump
from support.programs import agent
from support.text_backend import TextBackend, says

# A run takes only a few seconds, but on a busy machine it takes half a minute to start the programs.
PATIENCE = 150.0

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a program in the ``work`` folder. ``home`` is empty, so that the user's settings do not apply."""

    home: Path
    work: Path
    base_url: str
    api: str

    @property
    def environment(self) -> dict[str, str]:
        folders = {f"XDG_{name}_HOME": str(self.home / name.lower()) for name in ("CONFIG", "DATA", "CACHE", "STATE")}
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "NO_COLOR": "1", "TERM": "dumb", **folders}


QUESTION = "What is in notes.txt?"


def opencode_config(base_url: str, api: str, **more: Any) -> str:
    package = "@ai-sdk/openai" if api == "responses" else "@ai-sdk/openai-compatible"
    model = {"name": MODEL, "tool_call": True, "limit": {"context": 200_000, "output": 8_000}}
    provider = {"npm": package, "options": {"baseURL": base_url, "apiKey": "none"}, "models": {MODEL: model}}
    named = f"toolsim/{MODEL}"
    fixed = {"model": named, "small_model": named, "autoupdate": False, "share": "disabled"}
    return json.dumps(fixed | {"provider": {"toolsim": provider}} | more)


OPENCODE = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def opencode(run: Run) -> tuple[list[str], dict[str, str]]:
    config = opencode_config(run.base_url, run.api, permission={"bash": "allow"})
    return ["run", "--format", "json", "--title", "x", QUESTION], {**OPENCODE, "OPENCODE_CONFIG_CONTENT": config}


def copilot(run: Run) -> tuple[list[str], dict[str, str]]:
    provider = {"BASE_URL": run.base_url, "TYPE": "openai", "API_KEY": "none"}
    if run.api == "responses":
        provider["WIRE_API"] = "responses"
    environment = {f"COPILOT_PROVIDER_{name}": value for name, value in provider.items()}
    return ["--allow-all-tools", "-p", QUESTION], {**environment, "COPILOT_MODEL": MODEL, "COPILOT_OFFLINE": "true"}


def qwen(run: Run) -> tuple[list[str], dict[str, str]]:
    environment = {"OPENAI_BASE_URL": run.base_url, "OPENAI_API_KEY": "none"}
    return ["--auth-type", "openai", "-m", MODEL, "--yolo", "-p", QUESTION], environment


# For each program: the function that returns its command line and environment, its tool for shell commands, and the
# tool's other arguments. Qwen Code waits until a command exits, but not until it has read all output. If a command
# exits immediately, its output is sometimes lost (4 of 60 runs on a busy machine), so the commands below take a second.
PROGRAMS: dict[str, tuple[Callable[[Run], tuple[list[str], dict[str, str]]], str, dict[str, Any]]] = {
    "opencode": (opencode, "bash", {"description": "Look."}),
    "copilot": (copilot, "bash", {"description": "Look."}),
    "qwen": (qwen, "run_shell_command", {"description": "Look.", "is_background": False}),
}


def needs(name: str) -> str:
    """Return the program's path, or skip the test if it is not installed."""
    path = agent(name)
    if path is None:
        pytest.skip(f"needs {name}: run `make test-clients`")
    return path


@pytest.fixture(scope="module")
def chat_stage(text_backend: TextBackend) -> Iterator[Stage]:
    """A backend with only the chat completions API, like most backends that need toolsim."""
    with Mitmdump(text_backend.url, toolsim_backend="chat") as proxy:
        yield Stage(text_backend, f"{proxy.url}/v1", "chat")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / "notes.txt").write_text("Paris\n")
    (work / "more.txt").write_text("Rome\n")
    return home, work


def run_program(name: str, stage: Stage, folders: tuple[Path, Path], api: str) -> subprocess.CompletedProcess[str]:
    program = needs(name)
    run = Run(*folders, stage.base_url, api)
    words, environment = PROGRAMS[name][0](run)
    return subprocess.run(
        [program, *words],
        env=run.environment | environment,
        cwd=run.work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "api"),
    # A separate test below covers opencode over chat.
    [("opencode", "responses"), ("copilot", "chat"), ("copilot", "responses"), ("qwen", "chat")],
)
def test_tool_loop(name: str, api: str, chat_stage: Stage, folders: tuple[Path, Path]) -> None:
    """The agent runs the call in the first answer and the two calls in the second answer, and sends their outputs to
    the model.
    """
    needs(name)
    _, tool, more = PROGRAMS[name]

    def shell(command: str) -> str:
        return call(tool, {"command": command, **more})

    turns = (
        says("Let me look.\n", shell("cat notes.txt; sleep 1")),
        says(shell("cat more.txt; sleep 1"), "\n", shell("wc -c < notes.txt > size.txt")),
        says("It says Paris, and Rome."),
    )
    chat_stage.backend.play(turns, chunk_size=3)
    done = run_program(name, chat_stage, folders, api)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "It says Paris, and Rome." in done.stdout
    assert (folders[1] / "size.txt").read_text().strip() == "6"
    exchanges = chat_stage.backend.exchanges
    assert len(exchanges) == len(turns)
    for exchange in exchanges:
        assert not exchange.body.get("tools")
        assert exchange.transcript, f"the text model could not read {exchange.body}"
    history = transcript(exchanges[-1])
    assert "Paris" in history
    assert "Rome" in history
    assert history.count("[function_call_output name=") == 3


class AgentClient:
    """A client of the Agent Client Protocol, which is JSON-RPC with one message per line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._next = 0
        self.updates: list[dict[str, Any]] = []

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._next += 1
        self._send({"id": self._next, "method": method, "params": params})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "method" not in message:
                assert message["id"] == self._next
                return dict(message["result"])
            if message["method"] == "session/update":
                self.updates.append(message["params"]["update"])
            elif "id" in message:
                self._send({"id": message["id"], "error": {"code": -32601, "message": "not here"}})
        raise AssertionError(f"{method} was never answered")

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()


def test_opencode_in_obsidian_copilot_4(chat_stage: Stage, folders: tuple[Path, Path]) -> None:
    """opencode works as Obsidian Copilot starts it: in the vault, with a custom prompt and the user's provider."""
    program = needs("opencode")
    home, vault = folders
    agents = {
        "copilot-build": {"mode": "primary", "prompt": "You work in an Obsidian vault."},
        # Unless its title agent is disabled, opencode also requests a title, either before or after the first question.
        "title": {"disable": True},
    }
    config = opencode_config(
        chat_stage.base_url, "chat", agent=agents, default_agent="copilot-build", permission={"question": "deny"}
    )
    note = str(vault / "notes.txt")
    chat_stage.backend.play((says("Let me look.\n", call("read", {"filePath": note})), says("Paris.")), chunk_size=3)
    environment = Run(home, vault, chat_stage.base_url, "chat").environment | OPENCODE
    process = subprocess.Popen(
        [program, "acp", "--print-logs"],
        env=environment | {"OPENCODE_CONFIG_CONTENT": config, "OPENCODE_LOG_LEVEL": "WARN"},
        cwd=vault,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        client = AgentClient(process)
        client.ask("initialize", protocolVersion=1, clientCapabilities={"fs": {}})
        session = client.ask("session/new", cwd=str(vault), mcpServers=[])["sessionId"]
        ended = client.ask(
            "session/prompt", sessionId=session, prompt=[{"type": "text", "text": "What is in my note?"}]
        )
    finally:
        process.kill()
        process.communicate()
    assert ended["stopReason"] == "end_turn"
    chunks = [update for update in client.updates if update["sessionUpdate"] == "agent_message_chunk"]
    assert "".join(chunk["content"]["text"] for chunk in chunks) == "Let me look.\nParis."
    calls = [update for update in client.updates if update["sessionUpdate"] == "tool_call_update"]
    assert calls[-1]["status"] == "completed"
    first, second = chat_stage.backend.exchanges
    assert "You work in an Obsidian vault." in transcript(first)
    assert "CLIENT TOOL CATALOG" in transcript(first)
    assert "Paris" in transcript(second)
