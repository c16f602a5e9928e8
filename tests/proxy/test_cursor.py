"""Tests for Cursor's requests to the chat completions path, sent by the OpenAI SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says
from unit.wire.test_foreign import AGENT, CLAUDE

PATCH = "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\n"
CALLS = {
    "claude": '<tool_call>{"name":"read_file","arguments":{"path":"b.txt"}}</tool_call>',
    "agent": f'<tool_call>{{"name":"ApplyPatch","arguments":{{"input":{json.dumps(PATCH)}}}}}</tool_call>',
}
BODIES = {"claude": CLAUDE, "agent": AGENT}


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend(apis=("responses", "chat", "messages")) as backend:
        yield backend


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
@pytest.mark.parametrize("retry", [0, 1])
def test_answers_are_chat_completions(backend: TextBackend, api: str, retry: int) -> None:
    """Cursor's requests in the formats of other APIs are answered with chat completions, in one round or two. The model
    receives the conversation history.
    """
    with (
        Mitmdump(backend.url, toolsim_backend=api, toolsim_retry=retry) as proxy,
        OpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        for kind, body in BODIES.items():
            for stream in (True, False):
                broken = says('<tool_call>{"name":"read_file","arguments":{oops</tool_call>')
                backend.play([*[broken] * retry, says(CALLS[kind])])
                call = asked(client, {**body, "stream": stream})
                if kind == "agent":
                    assert (call["custom"]["name"], call["custom"]["input"]) == ("ApplyPatch", PATCH)
                else:
                    function = call["function"]
                    assert (function["name"], json.loads(function["arguments"])) == ("read_file", {"path": "b.txt"})
                shown = "\n".join(text for _, text in backend.exchanges[-1].transcript)
                assert len(backend.exchanges) == 1 + retry
                assert "a.txt" in shown
                assert "Seven." in shown


def asked(client: OpenAI, body: dict[str, Any]) -> dict[str, Any]:
    """Return the only call in an answer as the OpenAI SDK reads it."""
    answer: Any = client.post("/chat/completions", body=body, cast_to=object) if not body["stream"] else None
    if answer is not None:
        assert answer["object"] == "chat.completion"
        found: dict[str, Any] = answer["choices"][0]["message"]["tool_calls"][0]
        return found
    known = {"model": body["model"], "messages": body.get("messages")}
    more = {key: value for key, value in body.items() if key not in (*known, "stream")}
    calls: dict[str, Any] = {}
    for chunk in client.chat.completions.create(**known, stream=True, extra_body=more):  # type: ignore[call-overload]
        assert chunk.object == "chat.completion.chunk"
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or ():
                for kind, value in call.to_dict().items():
                    for key, text in value.items() if isinstance(value, dict) else ():
                        kept = calls.setdefault(kind, {})
                        kept[key] = kept.get(key, "") + text
    return calls
