"""The turns in which functions fail, and their backend."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from support.raw_backend import Answer
from support.wire import ApiName, backend_answer

KEY = "sk-faults"
PIECES = ("Let me ", "look.\n", '<tool_call>{"name":"get_', 'weather","arguments":{"city":"Bonn"}}</tool_call>')
QUESTION = "What is the weather in Bonn?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PATHS: dict[str, ApiName] = {"/v1/responses": "responses", "/v1/chat/completions": "chat", "/v1/messages": "messages"}


async def answer_any(answer: Answer) -> None:
    """Answer a request in the API of its path, streamed or not. For any other path, return a model list."""
    api = next((api for path, api in PATHS.items() if answer.asked.path.startswith(path)), None)
    if api is None:
        await answer.whole(b'{"object":"list","data":[{"id":"m","object":"model"}]}', Content_Type="application/json")
        return
    is_stream = json.loads(answer.asked.body).get("stream") is True
    kind, body = backend_answer(api, is_stream, PIECES)
    if not is_stream:
        await answer.whole(body, Content_Type=kind)
        return
    await answer.head(Content_Type=kind)
    for frame in body.split(b"\n\n"):
        if frame:
            await answer.send(frame + b"\n\n")
    await answer.end()


@dataclass(frozen=True)
class Scenario:
    """A turn to run. ``proxy``: the name of the proxy that receives the request; ``headers``: the client's headers."""

    name: str
    path: str
    body: dict[str, Any]
    proxy: str = "open"
    headers: dict[str, str] = field(default_factory=dict)
    is_admitted: bool = True
    """Whether the request includes the key that the proxy requires."""
    is_continued: bool = False
    """Whether the request continues a stored answer."""
    socket_turns: int = 0
    """The number of turns on one WebSocket connection, each of which continues the previous one; 0 for HTTP."""

    @property
    def is_stream(self) -> bool:
        return self.body.get("stream") is True


def _responses(**more: Any) -> tuple[str, dict[str, Any]]:
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
    return "/v1/responses", {"model": "m", "input": QUESTION, "tools": [tool], **more}


def _chat(**more: Any) -> tuple[str, dict[str, Any]]:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    messages = [{"role": "user", "content": QUESTION}]
    return "/v1/chat/completions", {"model": "m", "messages": messages, "tools": [tool], **more}


def _messages(**more: Any) -> tuple[str, dict[str, Any]]:
    tool = {"name": "get_weather", "input_schema": SCHEMA}
    messages = [{"role": "user", "content": QUESTION}]
    return "/v1/messages", {"model": "m", "max_tokens": 100, "messages": messages, "tools": [tool], **more}


APIS = {"responses": _responses, "chat": _chat, "messages": _messages}
_WITH_KEY = {"authorization": f"Bearer {KEY}"}


def _all() -> list[Scenario]:
    found = []
    for api, ask in APIS.items():
        for stream in (True, False):
            kind = "streamed" if stream else "whole"
            found += [
                Scenario(f"{api} {kind}", *ask(stream=stream, store=False)),
                Scenario(f"{api} {kind}, key", *ask(stream=stream, store=False), "locked", _WITH_KEY),
                Scenario(f"{api} {kind}, no key", *ask(stream=stream), "locked", is_admitted=False),
                Scenario(f"{api} {kind}, stored", *ask(stream=stream, store=True), is_continued=api == "responses"),
                Scenario(f"{api} {kind}, rounds", *ask(stream=stream, store=False), "rounds"),
            ]
    for name, proxy, headers in (("", "open", {}), (", key", "locked", _WITH_KEY), (", rounds", "rounds", {})):
        found.append(Scenario(f"socket{name}", *_responses(store=False), proxy, headers, socket_turns=2))
    found.append(Scenario("socket, stored", *_responses(store=True), socket_turns=2))
    found.append(Scenario("socket, no key", *_responses(), "locked", is_admitted=False, socket_turns=1))
    return found


SCENARIOS = {scenario.name: scenario for scenario in _all()}
