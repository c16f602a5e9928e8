"""The FastAPI endpoint from the parsing page, run by a real uvicorn, with a text-only model and the official SDK."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from support.mitmdump import ROOT
from support.ports import free_port
from support.text_backend import TextBackend, says

pytest.importorskip("fastapi", reason="needs fastapi (make setup)")
pytest.importorskip("uvicorn", reason="needs uvicorn (make setup)")
pytestmark = pytest.mark.slow

EXAMPLE = re.findall(r"^```python\n(.*?)^```", (ROOT / "addon/docs/parsing.md").read_text(), re.DOTALL | re.MULTILINE)[
    1
]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
STRICT: Any = {"type": "function", "function": {**TOOL["function"], "strict": True}}
CALL = '<tool_call>{"name":"get_weather","arguments":{"city":"Oslo"}}</tool_call>'


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend() as server:
        yield server


@pytest.fixture(scope="module")
def client(backend: TextBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder, port = tmp_path_factory.mktemp("app"), free_port()
    (folder / "example.py").write_text(EXAMPLE)
    command = [sys.executable, "-m", "uvicorn", "example:app", "--port", str(port), "--log-level", "warning"]
    environment = os.environ | {"MODEL_URL": f"{backend.url}/v1"}
    server = subprocess.Popen(command, cwd=folder, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                httpx.get(url)
                break
            except httpx.ConnectError:
                assert server.poll() is None
                time.sleep(0.05)
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20) as made:
            yield made
    finally:
        server.terminate()
        server.wait()


def ask(client: openai.OpenAI, *tools: Any) -> Any:
    """Return the first choice of the completion that the SDK accumulates from the stream."""
    with client.chat.completions.stream(
        model="any", messages=[{"role": "user", "content": "Oslo?"}], tools=tools or (TOOL,)
    ) as stream:
        return stream.get_final_completion().choices[0]


def test_calls_and_prose(client: openai.OpenAI, backend: TextBackend) -> None:
    """Calls and prose in deltas of three characters are parsed, and the model's prompt contains the tool."""
    backend.play([says(f"Let me look.\n{CALL}{CALL.replace('Oslo', 'Bonn')}")], chunk_size=3)
    choice = ask(client)
    assert (choice.finish_reason, choice.message.content.strip()) == ("tool_calls", "Let me look.")
    called = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert called == [
        ("call_1", "get_weather", '{"city":"Oslo"}'),
        ("call_2", "get_weather", '{"city":"Bonn"}'),
    ]
    assert "get_weather" in backend.exchanges[0].transcript[0][1]


def test_text_streams_while_model_writes(client: openai.OpenAI, backend: TextBackend) -> None:
    """The client receives the first text while the model is still writing."""
    backend.play([says("One ", "two ", "three.", pause=0.3)])
    asked: Any = {"model": "any", "messages": [{"role": "user", "content": "Count"}], "tools": [TOOL], "stream": True}
    answer = client.chat.completions.create(**asked)
    seen = [(chunk.choices[0].delta.content or "", time.monotonic()) for chunk in answer]
    assert "".join(text for text, _ in seen) == "One two three."
    assert next(at for text, at in seen if text) < seen[-1][1] - 0.4


def test_call_cut_by_token_limit_is_text(client: openai.OpenAI, backend: TextBackend) -> None:
    """A call that is cut off at the token limit is returned as text."""
    backend.play([says(CALL[:30], ending="length")])
    asked: Any = {"model": "any", "messages": [{"role": "user", "content": "Oslo?"}], "tools": [TOOL], "stream": True}
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked)]
    assert "".join(choice.delta.content or "" for choice in chunks) == CALL[:30]
    assert chunks[-1].finish_reason == "length"


def test_invalid_tool_and_schema_mismatch_are_errors(client: openai.OpenAI, backend: TextBackend) -> None:
    """An invalid tool is refused with status 400. A call that violates a strict schema is an error in the stream."""
    with pytest.raises(openai.BadRequestError, match="name"):
        ask(client, {"type": "function", "function": {}})
    backend.play([says(CALL.replace("city", "town"))])
    with pytest.raises(openai.APIError, match="SCHEMA_MISMATCH"):
        ask(client, STRICT)
