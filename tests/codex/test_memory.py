"""The store over the real Codex app-server, which keeps nothing itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from memory.test_background import ended
from support.mitmdump import Mitmdump
from support.stub_model import Reply, StubModel, echo, last_text


@pytest.mark.slow
async def test_a_conversation_by_previous_response_id(codex: str, tmp_path: Path) -> None:
    """Each turn names only the one before, streamed and not, and the model is shown what was said in it."""
    asked: list[str] = []

    def reply(body: dict[str, Any]) -> Reply:
        asked.append(json.dumps(body["input"]))
        return Reply([f"Answer {len(asked)}."])

    stub = StubModel(reply)
    await stub.start()
    stub.write_config(tmp_path / "home")

    def run() -> list[Any]:
        options: dict[str, Any] = {"toolsim_backend": "codex", "toolsim_codex_command": f"{codex} app-server"}
        options["toolsim_store"] = f"sqlite:{tmp_path / 'store'}"
        with (
            Mitmdump(None, environment={"CODEX_HOME": str(tmp_path / "home")}, **options) as proxy,
            openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0, timeout=60) as client,
        ):
            first = client.responses.create(model="stub-1", input="One?")
            with client.responses.create(
                model="stub-1", input="Two?", previous_response_id=first.id, stream=True
            ) as stream:
                second: Any = list(stream)[-1]
            third = client.responses.create(model="stub-1", input="Three?", previous_response_id=second.response.id)
            return [first.output_text, third.output_text, client.responses.retrieve(third.id).output_text]

    assert await asyncio.to_thread(run) == ["Answer 1.", "Answer 3.", "Answer 3."]
    await stub.stop()
    places = [asked[2].index(words) for words in ("One?", "Answer 1.", "Two?", "Answer 2.", "Three?")]
    assert places == sorted(places)


@pytest.mark.slow
async def test_an_answer_in_the_background(codex: str, tmp_path: Path) -> None:
    """It is made and continued while nobody waits; to cancel one interrupts Codex's turn, and the next one is made."""
    stub = StubModel(lambda body: Reply(["On and on "] * 500, delay=0.05) if last_text(body) == "Long?" else echo(body))
    await stub.start()
    stub.write_config(tmp_path / "home")

    def run() -> list[str]:
        options: dict[str, Any] = {"toolsim_backend": "codex", "toolsim_codex_command": f"{codex} app-server"}
        with (
            Mitmdump(
                None, environment={"CODEX_HOME": str(tmp_path / "home")}, toolsim_store="memory", **options
            ) as proxy,
            openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0, timeout=60) as client,
        ):
            long = client.responses.create(model="stub-1", input="Long?", background=True, stream=True)
            id = next(event.response.id for event in long if event.type == "response.created")
            next(event for event in long if event.type == "response.output_text.delta")
            said = [str(client.responses.cancel(id).status)]
            first = ended(client, client.responses.create(model="stub-1", input="One?", background=True).id)
            more: Any = {"background": True, "previous_response_id": first.id}
            second = ended(client, client.responses.create(model="stub-1", input="Two?", **more).id)
            return [*said, first.output_text.strip(), second.output_text.strip()]

    assert await asyncio.to_thread(run) == ["cancelled", "echo One?", "echo Two?"]
    await asyncio.wait_for(stub.someone_left.wait(), 10)
    await stub.stop()
    assert "echo One?" in json.dumps(stub.requests[-1]["input"])
