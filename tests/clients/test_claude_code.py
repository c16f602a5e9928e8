"""Claude Code as a client of the Messages API: the real program, over a backend that only writes text."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from clients.cases import Stage, call
from support.programs import agent
from support.text_backend import Exchange, Turn, says

# A run takes seconds; on a busy machine, starting the program alone takes half a minute.
PATIENCE = 150.0

pytestmark = pytest.mark.slow


class Claude:
    """The program with a home of its own, in a folder with two files."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        program = agent("claude")
        if program is None:
            pytest.skip("needs claude: run `make clients`")
        self._program = program
        self._home = folder / "home"
        self._home.mkdir()
        self.work = folder / "work"
        self.work.mkdir()
        (self.work / "notes.txt").write_text("The word is heron.\n")
        (self.work / "more.txt").write_text("The colour is ochre.\n")
        self._base_url = stage.base_url.removesuffix("/v1")

    def ask(self, question: str, *arguments: str) -> dict[str, Any]:
        """Return what the program reports of one question."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._home),
            "ANTHROPIC_BASE_URL": self._base_url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            # It refuses to run unattended as root anywhere else.
            "IS_SANDBOX": "1",
        }
        allowed = ("--model", "text-model", "--output-format", "json", "--dangerously-skip-permissions")
        run = subprocess.run(
            [self._program, "-p", question, *allowed, *arguments],
            env=environment,
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
    return Claude(stage, tmp_path)


def shown(exchange: Exchange) -> str:
    return "\n".join(text for _, text in exchange.transcript)


def play(stage: Stage, *steps: tuple[str, Turn]) -> None:
    """Answer with the last step whose words the model has been shown; the first one needs none."""

    def answer(exchange: Exchange) -> Turn:
        text = shown(exchange)
        return [turn for words, turn in steps if words in text][-1]

    stage.backend.play(answer, chunk_size=7)


def test_files_are_read_and_written(stage: Stage, claude: Claude) -> None:
    """Two calls of one answer, a call after their outputs, and words at the end; arguments arrive as written."""
    notes, more, out = (str(claude.work / name) for name in ("notes.txt", "more.txt", "out.txt"))
    written = 'heron & "ochre" <tool_call>\n'
    play(
        stage,
        ("", says("I look.\n", call("Read", {"file_path": notes}), "\n", call("Read", {"file_path": more}))),
        ("The colour is ochre.", says(call("Write", {"file_path": out, "content": written}))),
        ("out.txt", says("Both are in out.txt.")),
    )
    # The last step's words are in the call that leads to it: only its output makes the file exist.
    result = claude.ask("What do the files say? Write it down.")
    assert (result["is_error"], result["result"]) == (False, "Both are in out.txt.")
    assert Path(out).read_text() == written
    assert result["usage"]["output_tokens"] > 0


def test_a_tool_that_fails(stage: Stage, claude: Claude) -> None:
    """The model is shown that it has failed, and why."""
    play(
        stage,
        ("", says(call("Read", {"file_path": str(claude.work / "none.txt")}))),
        ("The tool failed.", says("There is no such file.")),
    )
    assert claude.ask("Read it.")["result"] == "There is no such file."
    assert "does not exist" in shown(stage.backend.exchanges[-1])


def test_a_conversation_goes_on(stage: Stage, claude: Claude) -> None:
    """The next question has the first one's calls in its history, and its prompt begins as the one before."""
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


def test_an_answer_by_a_schema(stage: Stage, claude: Claude) -> None:
    """Claude Code has a tool for it, and the model calls that."""
    schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    play(stage, ("", says(call("StructuredOutput", {"word": "heron"}))))
    result = claude.ask("What is the word?", "--json-schema", json.dumps(schema), "--max-turns", "3")
    assert result["structured_output"] == {"word": "heron"}
