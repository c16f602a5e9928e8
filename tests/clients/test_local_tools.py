"""Built-in tools of openai-agents (shell, the older local shell, and patches), called by a text-only model.

The library parses all events and items with the SDK's types, runs the tools, and sends each output as an item of a
tool-specific type. The outputs must be shown to the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    ApplyPatchTool,
    LocalShellTool,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellResult,
    ShellTool,
    apply_diff,
)
from agents.editor import ApplyPatchOperation, ApplyPatchResult
from clients.cases import MODEL, Stage, call, over_responses
from support.text_backend import says

every_mode = pytest.mark.parametrize("mode", ["run", "run_streamed"])


class Editor:
    """Edits the files in one folder, with the SDK's diff parser."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        (self.folder / operation.path).write_text(apply_diff("", operation.diff or "", mode="create"))
        return ApplyPatchResult(output=f"created {operation.path}")

    def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        path = self.folder / operation.path
        path.write_text(apply_diff(path.read_text(), operation.diff or ""))
        return ApplyPatchResult(output=f"updated {operation.path}")

    def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        (self.folder / operation.path).unlink()
        return ApplyPatchResult(status="completed")


async def run(stage: Stage, mode: str, tools: list[Any]) -> str:
    async with openai.AsyncOpenAI(base_url=stage.base_url, api_key="none", max_retries=0, timeout=10) as client:
        agent = Agent[Any](name="Tester", tools=tools, model=OpenAIResponsesModel(MODEL, client))
        options: dict[str, Any] = {"run_config": RunConfig(tracing_disabled=True)}
        if mode == "run":
            result: Any = await Runner.run(agent, "Do it.", **options)
        else:
            result = Runner.run_streamed(agent, "Do it.", **options)
            async for _ in result.stream_events():
                pass
        return str(result.final_output)


def shown(stage: Stage) -> str:
    """Return the last message of the prompt that the model received."""
    return stage.backend.exchanges[-1].transcript[-1][1]


@every_mode
async def test_shell(stage: Stage, mode: str) -> None:
    """Shell commands are run, and their output is in the next prompt. Two calls in one answer become two
    output items.
    """
    ran: list[list[str]] = []

    def execute(request: Any) -> ShellResult:
        ran.append(request.data.action.commands)
        outcome = ShellCallOutcome(type="exit", exit_code=3)
        return ShellResult([ShellCommandOutput(stdout="a.txt\n", stderr="oh", outcome=outcome)])

    both = call("shell", {"commands": ["ls", "pwd"]}) + call("shell", {"commands": ["id"], "timeout_ms": 5})
    stage.backend.play((says("Let me look. ", both), says("There is a.txt.")), chunk_size=3)
    assert await run(stage, mode, [ShellTool(execute)]) == "There is a.txt."
    assert ran == [["ls", "pwd"], ["id"]]
    assert '"exit_code":3' in shown(stage)
    assert "a.txt" in shown(stage)
    history = "\n".join(text for _, text in stage.backend.exchanges[-1].transcript)
    assert '{"commands":["ls","pwd"]}' in history.replace(", ", ",")


@over_responses
@every_mode
async def test_local_shell(stage: Stage, mode: str) -> None:
    """A call to the older ``local_shell`` tool, whose command is a list, is run. Its output is in the next prompt."""
    ran: list[list[str]] = []

    def execute(request: Any) -> str:
        ran.append(request.data.action.command)
        return "the output"

    stage.backend.play((says(call("local_shell", {"command": ["ls", "-l"]})), says("Done.")), chunk_size=3)
    assert await run(stage, mode, [LocalShellTool(execute)]) == "Done."
    assert ran == [["ls", "-l"]]
    assert "the output" in shown(stage)


@every_mode
async def test_apply_patch(stage: Stage, mode: str, tmp_path: Path) -> None:
    """Calls to ``apply_patch``, one per turn, create, change and delete files."""
    operations = (
        {"operation": "create_file", "path": "a.py", "diff": "+one\n+two\n"},
        {"operation": "create_file", "path": "b.py", "diff": "+x\n"},
        {"operation": "update_file", "path": "a.py", "diff": "@@\n one\n-two\n+three\n"},
        {"operation": "delete_file", "path": "b.py"},
    )
    turns = [says(call("apply_patch", operation)) for operation in operations]
    stage.backend.play((*turns, says("Done.")), chunk_size=3)
    assert await run(stage, mode, [ApplyPatchTool(Editor(tmp_path))]) == "Done."
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]
    assert (tmp_path / "a.py").read_text().split() == ["one", "three"]
    assert "updated a.py" in "\n".join(text for _, text in stage.backend.exchanges[-1].transcript)


@over_responses
async def test_invalid_shell_call_stays_text(stage: Stage) -> None:
    """A shell call with invalid arguments remains text, since no item can represent these arguments."""
    wrong = call("shell", {"commands": {"first": "ls"}})
    stage.backend.play((says(wrong),))
    assert await run(stage, "run_streamed", [ShellTool(lambda request: "never")]) == wrong
