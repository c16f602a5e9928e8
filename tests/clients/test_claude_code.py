"""Claude Code, the real program, as a client of the Messages API with a text-only backend."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from clients.cases import Stage, call, over_chat
from support.mcp_servers import SEARCHER
from support.mitmdump import Mitmdump
from support.programs import agent, codex
from support.raw_backend import Answer, RawBackend
from support.stub_model import Reply, StubModel
from support.text_backend import Exchange, TextBackend, Turn, says

# A run takes only a few seconds, but on a busy machine it takes half a minute to start the program.
PATIENCE = 150.0

pytestmark = pytest.mark.slow


class Claude:
    """Claude Code with a new home folder, in a working folder that contains two files."""

    def __init__(self, base_url: str, folder: Path) -> None:
        program = agent("claude")
        if program is None:
            pytest.skip("needs claude: run `make test-clients`")
        self._program = program
        (folder / "home").mkdir()
        self.work = folder / "work"
        self.work.mkdir()
        (self.work / "notes.txt").write_text("The word is heron.\n")
        (self.work / "more.txt").write_text("The colour is ochre.\n")
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "ANTHROPIC_BASE_URL": base_url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            # Claude Code refuses to run unattended as root outside a sandbox.
            "IS_SANDBOX": "1",
        }

    def ask(self, question: str, *arguments: str) -> dict[str, Any]:
        """Return the JSON result that the program prints for one question."""
        return self.run([self._program], question, *arguments)

    def run(self, command: Sequence[str], question: str, *arguments: str) -> dict[str, Any]:
        """Return the JSON result of ``command`` for one question. The command receives Claude Code's arguments."""
        allowed = ("--model", "text-model", "--output-format", "json", "--dangerously-skip-permissions")
        run = subprocess.run(
            [*command, "-p", question, *allowed, *arguments],
            env=self.environment,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert run.stdout.startswith("{"), run.stderr
        result: dict[str, Any] = json.loads(run.stdout)
        return result


@pytest.fixture
def claude(stage: Stage, tmp_path: Path) -> Claude:
    return Claude(stage.base_url.removesuffix("/v1"), tmp_path)


def shown(exchange: Exchange) -> str:
    return "\n".join(text for _, text in exchange.transcript)


def play(stage: Stage, *steps: tuple[str, Turn]) -> None:
    """Answer each request with the last of ``steps`` whose text is in the prompt. The text of the first step is ""."""

    def answer(exchange: Exchange) -> Turn:
        text = shown(exchange)
        return [turn for words, turn in steps if words in text][-1]

    stage.backend.play(answer, chunk_size=7)


def test_files_are_read_and_written(stage: Stage, claude: Claude) -> None:
    """Claude Code runs two calls from one answer, and then a call that writes a file with exactly the given text."""
    notes, more, out = (str(claude.work / name) for name in ("notes.txt", "more.txt", "out.txt"))
    written = 'heron & "ochre" <tool_call>\n'
    play(
        stage,
        ("", says("I look.\n", call("Read", {"file_path": notes}), "\n", call("Read", {"file_path": more}))),
        ("The colour is ochre.", says(call("Write", {"file_path": out, "content": written}))),
        ("out.txt", says("Both are in out.txt.")),
    )
    # The Write call itself contains "out.txt", so only the file proves that Claude Code ran the call.
    result = claude.ask("What do the files say? Write it down.")
    assert (result["is_error"], result["result"]) == (False, "Both are in out.txt.")
    assert Path(out).read_text() == written
    assert result["usage"]["output_tokens"] > 0


@over_chat
def test_failed_tool_is_reported_to_the_model(stage: Stage, claude: Claude) -> None:
    """When a tool fails, the model's next prompt states the failure and the reason."""
    play(
        stage,
        ("", says(call("Read", {"file_path": str(claude.work / "none.txt")}))),
        ("The tool failed.", says("There is no such file.")),
    )
    assert claude.ask("Read it.")["result"] == "There is no such file."
    assert "does not exist" in shown(stage.backend.exchanges[-1])


@over_chat
def test_next_question_continues_the_prompt(stage: Stage, claude: Claude) -> None:
    """The prompt for the second question begins like the previous prompt, and contains the calls that answered the
    first question.
    """
    play(
        stage,
        ("", says(call("Bash", {"command": "cat notes.txt", "description": "Look."}))),
        ("The word is heron.", says("The word is heron, I see.")),
        ("And again?", says("Still heron.")),
    )
    assert claude.ask("What is the word?")["result"] == "The word is heron, I see."
    before = shown(stage.backend.exchanges[-1])
    assert claude.ask("And again?", "--continue")["result"] == "Still heron."
    after = shown(stage.backend.exchanges[-1])
    assert "cat notes.txt" in after
    asked = before.index("What is the word?")
    assert after[: asked * 9 // 10] == before[: asked * 9 // 10]


@over_chat
def test_answer_with_json_schema(stage: Stage, claude: Claude) -> None:
    """If the user specifies a JSON schema, the model answers by calling Claude Code's tool for structured output."""
    schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    play(stage, ("", says(call("StructuredOutput", {"word": "heron"}))))
    result = claude.ask("What is the word?", "--json-schema", json.dumps(schema), "--max-turns", "3")
    assert result["structured_output"] == {"word": "heron"}


@over_chat
def test_deferred_tool_is_loaded_by_a_search(stage: Stage, claude: Claude) -> None:
    """A deferred tool can be called after ToolSearch has loaded it. The prompt declares the tool only after this
    search.
    """
    claude.environment["ENABLE_TOOL_SEARCH"] = "true"
    fetch = call("WebFetch", {"url": "http://127.0.0.1:1/", "prompt": "What is it?"})
    play(
        stage,
        ("", says(call("ToolSearch", {"query": "select:WebFetch", "max_results": 1}))),
        ("The tool WebFetch can be called now.", says(fetch)),
        ("The tool failed.", says("There is nothing.")),
    )
    assert claude.ask("What is there?")["result"] == "There is nothing."
    first, second, *_ = map(shown, stage.backend.exchanges)
    declared = '{"name": "WebFetch", "arguments": {"url": <string'
    assert (declared in first, declared in second) == (False, True)


@over_chat
def test_web_search_fails_without_a_server(stage: Stage, claude: Claude) -> None:
    """Without an MCP search server, a web search fails, and the next prompt contains the failure.

    Claude Code's web search is a separate request with a tool that only Anthropic can run.
    """
    claude.environment["ENABLE_TOOL_SEARCH"] = "false"
    play(
        stage,
        ("", says(call("WebSearch", {"query": "herons"}))),
        ("The tool failed.", says("I cannot search here.")),
    )
    assert claude.ask("Search.")["result"] == "I cannot search here."
    assert "web_search_20250305" in shown(stage.backend.exchanges[-1])


def over_servers(backend: TextBackend, folder: Path, **servers: Any) -> Mitmdump:
    (folder / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    return Mitmdump(backend.url, toolsim_backend="chat", toolsim_mcp_config=str(folder / "servers.json"))


def test_web_search_with_an_mcp_server(text_backend: TextBackend, tmp_path: Path) -> None:
    """With an MCP search server, toolsim runs Claude Code's web searches, and the model receives the results."""
    with over_servers(text_backend, tmp_path, web=SEARCHER | {"allowed_tools": []}) as proxy:
        claude = Claude(proxy.url, tmp_path)
        claude.environment["ENABLE_TOOL_SEARCH"] = "false"
        play(
            Stage(text_backend, f"{proxy.url}/v1", "chat"),
            ("", says(call("WebSearch", {"query": "herons"}))),
            ("Perform a web search for the query", says(call("web_search", {"query": "herons"}))),
            ("1. Herons of Europe", says("The grey heron is common.")),
            ("Links:", says("It is the grey one.")),
        )
        assert claude.ask("Search.", "--max-turns", "4")["result"] == "It is the grey one."
    told = shown(text_backend.exchanges[-1])
    assert "https://birds.example/heron" in told
    assert "The grey heron is common." in told


@pytest.mark.ci
def test_deferred_tools_keep_the_prompt_small(text_backend: TextBackend, tmp_path: Path) -> None:
    """With 60 deferred tools, the prompt contains only the tool that was found, and extends the previous prompt."""
    many = {"command": sys.executable, "args": [str(Path(__file__).parents[1] / "support" / "many_mcp.py"), "60"]}
    (tmp_path / "many.json").write_text(json.dumps({"mcpServers": {"many": many}}))
    name, sizes = "mcp__many__operation_7", dict[str, list[int]]()
    for setting in ("true", "false"):
        (folder := tmp_path / setting).mkdir()
        with Mitmdump(text_backend.url, toolsim_backend="chat") as proxy:
            claude = Claude(proxy.url, folder)
            claude.environment["ENABLE_TOOL_SEARCH"] = setting
            made = says(call(name, {"path": "notes"}))
            search = says(call("ToolSearch", {"query": f"select:{name}", "max_results": 1}))
            play(
                Stage(text_backend, f"{proxy.url}/v1", "chat"),
                ("", search if setting == "true" else made),
                (f"The tool {name} can be called now.", made),
                ("7: notes", says("Done.")),
            )
            result = claude.ask("Do it.", "--mcp-config", str(tmp_path / "many.json"), "--max-turns", "5")
        assert result["result"] == "Done."
        prompts = [shown(exchange) for exchange in text_backend.exchanges]
        sizes[setting] = [len(prompt) for prompt in prompts]
        for before, after in pairwise(prompts):
            assert after.startswith(before)
    assert max(sizes["true"]) < 0.6 * max(sizes["false"]), sizes


def test_context_command_shows_backends_counts(tmp_path: Path) -> None:
    """If the backend can count tokens, Claude Code's /context command shows the backend's counts."""

    async def answers(answer: Answer) -> None:
        can = answer.asked.path.startswith("/v1/messages/count_tokens")
        counted = b'{"input_tokens":7000}' if can else b"{}"
        await answer.whole(counted, 200 if can else 404, Content_Type="application/json")

    with RawBackend() as backend, Mitmdump(backend.url, toolsim_engine="llama.cpp") as proxy:
        backend.play(answers)
        report = Claude(proxy.url, tmp_path).ask("/context")["result"]
    total = re.search(r"Tokens:\*\* (\d+)k", report)
    assert total is not None, report
    assert int(total[1]) >= 7
    assert int(total[1]) % 7 == 0


async def test_tool_loop_with_codex_as_backend(tmp_path: Path) -> None:
    """Claude Code's tool loop works with a real Codex app-server, which receives calls and outputs as text."""
    program = codex()
    if program is None:
        pytest.skip("needs codex: run `make test-clients`")

    def reply(body: dict[str, Any]) -> Reply:
        is_read = "The word is heron." in json.dumps(body["input"])
        text = "It is heron." if is_read else call("Read", {"file_path": str(claude.work / "notes.txt")})
        return Reply([text[start : start + 7] for start in range(0, len(text), 7)])

    stub = StubModel(reply)
    await stub.start()
    stub.write_config(tmp_path / "codex")
    proxy = Mitmdump(
        toolsim_backend="codex",
        toolsim_codex_command=f"{program} app-server",
        environment={"CODEX_HOME": str(tmp_path / "codex")},
    )
    claude = Claude("", tmp_path)
    try:
        with proxy:
            claude.environment["ANTHROPIC_BASE_URL"] = proxy.url
            result = await asyncio.to_thread(claude.ask, "What is the word?")
    finally:
        await stub.stop()
    assert (result["is_error"], result["result"]) == (False, "It is heron.")
