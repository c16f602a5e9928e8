"""The store over the real Codex app-server, which keeps nothing itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from support.mitmdump import Mitmdump
from support.stub_model import Reply, StubModel


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
