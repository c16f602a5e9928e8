"""Tests for toolsim's response store with the real Codex app-server, which does not store responses itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from memory.loops import LOOPS, MODEL_TEXTS, check, needed
from memory.test_background import ended
from support.mitmdump import Mitmdump
from support.stub_model import Reply, StubModel, echo, last_text, texts


@pytest.mark.slow
async def test_conversation_by_previous_response_id(codex: str, tmp_path: Path) -> None:
    """A conversation can be continued with previous_response_id: the model receives the complete history in order."""
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
async def test_background_answer(codex: str, tmp_path: Path) -> None:
    """Canceling a background answer interrupts Codex's turn. A completed background answer can be continued."""
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
            results = [str(client.responses.cancel(id).status)]
            first = ended(client, client.responses.create(model="stub-1", input="One?", background=True).id)
            more: Any = {"background": True, "previous_response_id": first.id}
            second = ended(client, client.responses.create(model="stub-1", input="Two?", **more).id)
            return [*results, first.output_text.strip(), second.output_text.strip()]

    assert await asyncio.to_thread(run) == ["cancelled", "echo One?", "echo Two?"]
    await asyncio.wait_for(stub.someone_left.wait(), 10)
    await stub.stop()
    assert "echo One?" in json.dumps(stub.requests[-1]["input"])


@dataclass
class Stage:
    """A proxy with a store and a Codex backend. ``script``: the model's answers; ``shown``: the model's prompts."""

    base_url: str = ""
    script: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def reply(self, body: dict[str, Any]) -> Reply:
        self.shown.append("\n".join(texts(item) for item in body["input"]))
        text = self.script.pop(0)
        return Reply([text[i : i + 7] for i in range(0, len(text), 7)])


@pytest.fixture
async def stage(codex: str, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage()
    stub = StubModel(stage.reply)
    await stub.start()
    stub.write_config(tmp_path / "home")
    options: dict[str, Any] = {"toolsim_backend": "codex", "toolsim_codex_command": f"{codex} app-server"}
    options["toolsim_store"] = f"sqlite:{tmp_path / 'store'}"
    proxy = Mitmdump(None, environment={"CODEX_HOME": str(tmp_path / "home")}, **options)
    await asyncio.to_thread(proxy.__enter__)
    try:
        stage.base_url = f"{proxy.url}/v1"
        yield stage
    finally:
        await asyncio.to_thread(proxy.__exit__, None, None, None)
        await stub.stop()


@pytest.mark.slow
async def test_clients_that_send_only_new_items(stage: Stage) -> None:
    """With each SDK loop that sends only new items, the model receives the complete history once and in order."""
    for number, name in enumerate([*LOOPS][:-2]):
        needed(name)
        stage.script = [*MODEL_TEXTS]
        check(await LOOPS[name](stage.base_url, number % 2 == 0), stage.shown[-1])


@pytest.mark.slow
async def test_counts_are_estimates_and_model_summarizes(stage: Stage) -> None:
    """Token counts are estimates, since Codex cannot count in advance, and the model writes summaries."""
    stage.script = ["It rains.", "Rain was spoken of.", "Yes."]
    async with openai.AsyncOpenAI(base_url=stage.base_url, api_key="none", max_retries=0, timeout=60) as client:
        count = await client.responses.input_tokens.count(model="stub-1", input="How is the weather today?")
        assert count.model_extra == {"estimated": True}
        first = await client.responses.create(model="stub-1", input="How is the weather?")
        made = await client.responses.compact(model="stub-1", previous_response_id=first.id)
        left: list[Any] = [item.to_dict(warnings=False) for item in made.output]
        again = await client.responses.create(model="stub-1", input=[*left, {"role": "user", "content": "Still?"}])
    assert again.output_text == "Yes."
    assert "Summarise" in stage.shown[1]
    places = [stage.shown[2].index(text) for text in ("How is the weather?", "Rain was spoken of.", "Still?")]
    assert places == sorted(places)
