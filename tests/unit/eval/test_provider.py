"""Tests for the provider that answers from scripts, with an ordinary HTTP client."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import Failed, TextDelta
from toolsim.eval.provider import MODEL, ScriptedProvider, scripted_provider
from toolsim.eval.scenarios import SCENARIOS
from toolsim.eval.script import Reply
from toolsim.wire.apis import APIS


async def ask(script: list[Reply], *messages: tuple[str, str]) -> str:
    request = APIS["chat"].read({"messages": [{"role": role, "content": text} for role, text in messages]})
    events = [event async for event in ScriptedProvider({"Scenario one.": script}).answer(request)]
    if isinstance(events[0], Failed):
        return f"error {events[0].error.message}"
    return "".join(event.text for event in events if isinstance(event, TextDelta))


USER = ("user", "Scenario one. Go.")


async def test_number_of_turns_selects_the_reply() -> None:
    """The number of assistant messages in a request selects the reply. When the script is exhausted, the last reply is
    repeated.
    """
    script: list[Reply] = ["first", lambda shown: shown[-4:], ApiError("Out.")]
    reply = ("assistant", "…")
    assert await ask(script, ("system", "Rules"), USER) == "first"
    assert await ask(script, USER, reply, ("user", "an output")) == "tput"
    for more in ([reply, reply], [reply, reply, reply]):
        assert await ask(script, USER, *more) == "error Out."


async def test_unknown_conversation_is_refused() -> None:
    with pytest.raises(BadRequest):
        await ask(["first"], ("user", "Hello"))


async def test_provider_serves_both_apis() -> None:
    """The provider returns the same text through both APIs, and ``/models`` lists a single model."""
    chat = next(scenario for scenario in SCENARIOS if scenario.id == "chat_only")
    async with scripted_provider() as url, httpx.AsyncClient(base_url=url) as client:
        assert [model["id"] for model in (await client.get("models")).json()["data"]] == [MODEL]
        bodies: dict[str, Any] = {
            "chat/completions": {"messages": list(chat.messages)},
            "responses": {"input": list(chat.messages)},
        }
        for path, body in bodies.items():
            answer = await client.post(path, json={"model": MODEL, **body})
            assert answer.status_code == 200
            assert '"Done."' in answer.text
