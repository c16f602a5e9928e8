"""Codex CLI as a client of the Responses API: ``codex exec`` runs its function, custom and namespace tools.

Which tools Codex declares depends on the model's name. For gpt-5.5, ``apply_patch`` is a custom tool. For gpt-6-sol,
all tools are in namespaces in an ``additional_tools`` item. For an unknown model, each MCP server is a namespace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from clients.cases import Stage, call, over_responses, transcript
from support import programs
from support.mcp_servers import SEARCHER
from support.mitmdump import Mitmdump
from support.text_backend import Exchange, TextBackend, Turn, refuses, says

HERE = Path(__file__).parent
CODEX = programs.codex()
PATIENCE = 30.0
"""Maximum duration of one run, in seconds. A run usually takes less than one second."""

pytestmark = pytest.mark.skipif(CODEX is None, reason="needs codex: run `make test-clients`")

ALONE = """\
approval_policy = "never"
sandbox_mode = "danger-full-access"
"""
ONE_LINE = (
    ALONE
    + """\
openai_base_url = {base_url}
"""
)
CONFIG = (
    ALONE
    + """\
model_provider = "toolsim"

[model_providers.toolsim]
name = "toolsim"
base_url = {base_url}
wire_api = "responses"
env_key = "TOOLSIM_TEST_KEY"
request_max_retries = 0
stream_max_retries = 0

[mcp_servers.weather]
command = {python}
args = [{mcp_server}]
"""
)


@dataclass(slots=True)
class Printed:
    """The output of ``codex exec --json``: the completed items, the usage, and the error message if the turn failed."""

    items: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    failure: str | None = None
    log: str = ""

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in self.items if item["type"] == kind]

    @property
    def words(self) -> list[str]:
        return [item["text"] for item in self.of("agent_message")]


class Codex:
    """Runs ``codex exec`` with new home and working folders, without the user's configuration and login."""

    def __init__(self, folder: Path) -> None:
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        (self.work / "notes.txt").write_text("Paris\n")

    def run(self, base_url: str, model: str, config: str = CONFIG) -> Printed:
        paths = {"base_url": base_url, "python": sys.executable, "mcp_server": str(HERE / "weather_mcp.py")}
        config = config.format(**{name: json.dumps(value) for name, value in paths.items()})
        (self.home / "config.toml").write_text(config)
        assert CODEX is not None
        done = subprocess.run(
            [CODEX, "exec", "--json", "--skip-git-repo-check", "-m", model, "-C", self.work, "Do it."],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
                "CODEX_HOME": str(self.home),
                "TOOLSIM_TEST_KEY": "none",
                "CODEX_API_KEY": "none",
                "RUST_LOG": "codex_core=warn",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        printed = Printed(log=done.stderr)
        for line in done.stdout.splitlines():
            match json.loads(line):
                case {"type": "item.completed", "item": item}:
                    printed.items.append(item)
                case {"type": "turn.completed", "usage": usage}:
                    printed.usage = usage
                case {"type": "turn.failed", "error": {"message": message}}:
                    printed.failure = message
        assert (done.returncode == 0) == (printed.failure is None), done.stderr
        return printed


@pytest.fixture
def codex(tmp_path: Path) -> Codex:
    return Codex(tmp_path)


def play(stage: Stage, *turns: Turn) -> None:
    stage.backend.play(turns, chunk_size=3)


def compare_backend(stage: Stage, turns: int, *outputs: str) -> None:
    """Check that the backend received one text-only request per turn, and that the last one contains the outputs."""
    assert len(stage.backend.exchanges) == turns
    for exchange in stage.backend.exchanges:
        assert not exchange.body.get("tools")
        assert exchange.transcript, f"the text model could not read {exchange.body}"
    history = transcript(stage.backend.exchanges[-1])
    for output in outputs:
        assert output in history
    assert "unsupported call" not in history


LIST = {"cmd": "ls"}
READ = {"cmd": "cat notes.txt"}


def test_shell_function(stage: Stage, codex: Codex) -> None:
    """Codex runs a call to its shell function. The function's output appears both in what Codex prints and in the next
    prompt.
    """
    play(stage, says("Let me look.\n", call("exec_command", LIST)), says("One file."))
    printed = codex.run(stage.base_url, "gpt-5.5")
    (command,) = printed.of("command_execution")
    assert (command["exit_code"], command["aggregated_output"]) == (0, "notes.txt\n")
    assert printed.words == ["Let me look.\n", "One file."]
    compare_backend(stage, 2, "notes.txt")


@over_responses
def test_two_calls_in_one_answer(stage: Stage, codex: Codex) -> None:
    """If an answer contains two calls, Codex runs both calls, and the model receives both outputs."""
    play(stage, says(call("exec_command", LIST), "\n", call("exec_command", READ)), says("It says Paris."))
    printed = codex.run(stage.base_url, "gpt-5.5")
    outputs = [item["aggregated_output"] for item in printed.of("command_execution")]
    assert sorted(outputs) == ["Paris\n", "notes.txt\n"]  # The two commands run in parallel.
    assert printed.words == ["It says Paris."]
    compare_backend(stage, 2, "notes.txt", "Paris")


@over_responses
def test_custom_tool(stage: Stage, codex: Codex) -> None:
    """``apply_patch``, a custom tool, writes a file with exactly the given text. The next turn's command reads it."""
    patch = '*** Begin Patch\n*** Add File: new.txt\n+It\'s "new" – 🌞\n*** End Patch\n'
    play(
        stage,
        says(call("apply_patch", {"input": patch})),
        says(call("exec_command", {"cmd": "cat new.txt"})),
        says("Written."),
    )
    printed = codex.run(stage.base_url, "gpt-5.5")
    assert (codex.work / "new.txt").read_text() == 'It\'s "new" – 🌞\n'
    assert len(printed.of("file_change")) == 1
    assert [item["aggregated_output"] for item in printed.of("command_execution")] == ['It\'s "new" – 🌞\n']
    assert printed.words == ["Written."]
    compare_backend(stage, 3, "Success", "– 🌞")


@over_responses
def test_namespace_tool(stage: Stage, codex: Codex) -> None:
    """A call to an MCP tool is run. Codex declares MCP tools in a namespace, and the call must name this namespace."""
    play(stage, says(call("mcp__weather__get_weather", {"city": "Paris"})), says("Clear."))
    printed = codex.run(stage.base_url, "text-model")
    (used,) = printed.of("mcp_tool_call")
    assert (used["server"], used["tool"], used["status"]) == ("weather", "get_weather", "completed")
    assert printed.words == ["Clear."]
    compare_backend(stage, 2, "The sky over Paris is clear.")


@over_responses
def test_additional_tools(stage: Stage, codex: Codex) -> None:
    """Tools that are declared in an input item (a custom tool and a function, both in namespaces) can be called."""
    program = 'const result = await tools.exec_command({cmd: "ls"});\ntext(result.output);'
    play(
        stage,
        says(call("functions__exec", {"input": program})),
        says(call("clock__sleep", {"duration_ms": 1})),
        says("One file."),
    )
    printed = codex.run(stage.base_url, "gpt-6-sol")
    (command,) = printed.of("command_execution")
    assert (command["exit_code"], command["aggregated_output"]) == (0, "notes.txt\n")
    assert printed.words == ["One file."]
    compare_backend(stage, 3, "notes.txt", "Sleep completed.")


AGENTS = CONFIG + "[features]\nmulti_agent_v2 = true\n"
TASK = "COUNT THE HERONS"


@pytest.mark.ci
@pytest.mark.parametrize(("model", "config"), [("text-model", AGENTS), ("gpt-5.6-sol", CONFIG), ("gpt-6-sol", CONFIG)])
def test_subagent(stage: Stage, codex: Codex, model: str, config: str) -> None:
    """A subagent receives its task, and its answer reaches the agent that spawned it."""
    spawn = {"message": TASK, "task_name": "herons", "fork_turns": "none"}

    def write(exchange: Exchange) -> Turn:
        shown = transcript(exchange)
        is_helper = "Task name: /root/herons" in shown
        if is_helper:
            return says("There are ", "seven herons." if TASK in shown else "no herons, and no task.")
        if "function_call_output name=collaboration__spawn_agent" not in shown:
            return says(call("collaboration__spawn_agent", spawn))
        if "Sender: /root/herons" not in shown:
            return says(call("collaboration__wait_agent", {"timeout_ms": 10_000}))
        return says("The helper counted seven." if "There are seven herons." in shown else "It counted none.")

    stage.backend.play(write, chunk_size=3)
    printed = codex.run(stage.base_url, model, config)
    assert printed.failure is None
    assert printed.words == ["The helper counted seven."]
    helper = next(text for text in map(transcript, stage.backend.exchanges) if "Task name: /root/herons" in text)
    assert "encrypted" not in helper


@over_responses
@pytest.mark.parametrize(
    ("turn", "message"),
    [
        pytest.param(refuses(400, "The model is out."), "The model is out.", id="backend_error"),
        pytest.param(says("Let me ", "look.", ending="error"), "The model is out.", id="error_event"),
        pytest.param(says("Let me ", "look.", ending="eof"), "", id="backend_ends_early"),
    ],
)
def test_backend_failure_is_reported(stage: Stage, codex: Codex, turn: Turn, message: str) -> None:
    """Codex reports a backend failure as an error and does not retry the request. The next run succeeds."""
    play(stage, turn, says(call("exec_command", LIST)), says("One file."))
    printed = codex.run(stage.base_url, "gpt-5.5")
    assert printed.failure is not None
    assert message in printed.failure
    assert len(stage.backend.exchanges) == 1, "Codex sent the failed request again"
    printed = codex.run(stage.base_url, "gpt-5.5")
    assert printed.failure is None
    assert printed.words == ["One file."]
    assert len(printed.of("command_execution")) == 1


@pytest.mark.parametrize("is_refused", [False, True], ids=["websocket", "websocket_refused"])
def test_configuration_in_one_line(text_backend: TextBackend, codex: Codex, is_refused: bool) -> None:
    """With toolsim as its OpenAI base URL, set in one line, Codex works over WebSocket. If the WebSocket is refused,
    Codex works over HTTP.
    """
    arguments = ("--set", "websocket=false") if is_refused else ()
    with Mitmdump(text_backend.url, toolsim_backend="chat", arguments=arguments) as proxy:
        stage = Stage(text_backend, f"{proxy.url}/v1", "chat")
        play(stage, says("I look.\n", call("exec_command", LIST)), says(call("exec_command", READ)), says("Paris."))
        printed = codex.run(stage.base_url, "gpt-5.5", ONE_LINE)
    assert [item["aggregated_output"] for item in printed.of("command_execution")] == ["notes.txt\n", "Paris\n"]
    assert printed.words[-1] == "Paris."
    assert ("falling back to HTTP" in printed.log) is is_refused
    compare_backend(stage, 3, "notes.txt", "Paris")


NO_SUMMARY = says("I go on.\n", call("exec_command", LIST))


def test_web_search(text_backend: TextBackend, codex: Codex, tmp_path: Path) -> None:
    """An MCP server runs Codex's web search. The next prompt has the results, although Codex returns only the query."""
    servers = {"mcpServers": {"web": SEARCHER | {"allowed_tools": []}}}
    (tmp_path / "servers.json").write_text(json.dumps(servers))
    with Mitmdump(text_backend.url, toolsim_backend="chat", toolsim_mcp_config=str(tmp_path / "servers.json")) as proxy:
        stage = Stage(text_backend, f"{proxy.url}/v1", "chat")
        play(stage, says(call("web_search", {"query": "herons"})), says(call("exec_command", LIST)), says("Grey."))
        printed = codex.run(stage.base_url, "text-model")
        log = proxy.log()
    assert printed.words == ["Grey."]
    assert [item["query"] for item in printed.of("web_search")] == ["herons"]
    first, second, third = map(transcript, text_backend.exchanges)
    assert "web_search" in first
    assert "1. Herons of Europe" in second
    assert third.startswith(second)
    assert "TOOL_DROPPED" not in log


@over_responses
@pytest.mark.parametrize("first", [(), (NO_SUMMARY,)], ids=["at_once", "after_a_call_instead"])
def test_compaction_when_context_is_full(stage: Stage, codex: Codex, first: tuple[Turn, ...]) -> None:
    """When its context is full, Codex receives a summary, after a second attempt if necessary, and continues from it.

    The test configures Codex in a single line, as users do.
    """
    summary = "SUMMARY: the notes say Paris."
    play(stage, says(call("exec_command", READ)), *first, says(summary), says("Paris, then."))
    printed = codex.run(stage.base_url, "gpt-5.5", ONE_LINE + "model_auto_compact_token_limit = 5\n")
    assert printed.words == ["Paris, then."]
    compare_backend(stage, 3 + len(first), summary)
    *_, asked, last = (transcript(exchange) for exchange in stage.backend.exchanges)
    assert "Summarise everything above" in asked
    assert "Do it." in last
    assert "cat notes.txt" not in last


def test_no_call_without_the_addon(bare_stage: Stage, codex: Codex) -> None:
    """Without the addon, Codex runs no tool, although the answer contains a call. This proves that the loop tests can
    fail.
    """
    written = call("exec_command", LIST)
    play(bare_stage, says(written), says("One file."))
    printed = codex.run(bare_stage.base_url, "gpt-5.5")
    assert printed.of("command_execution") == []
    assert printed.words == [written]
