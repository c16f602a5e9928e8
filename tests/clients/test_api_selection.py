"""Real clients in front of servers that have only one API. Each proxy is started with a command from the README."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from clients.cases import TOOLS, Stage, call
from clients.test_claude_code import Claude
from clients.test_codex import CODEX, Codex
from openai import OpenAI
from support.command import TOOLSIM, environment, running
from support.effort import parameters
from support.mitmdump import ROOT
from support.programs import agent
from support.text_backend import TextBackend, says, until_output
from support.wire import ApiName

pytestmark = pytest.mark.slow

APIS: tuple[ApiName, ...] = ("responses", "chat", "messages")
TOOL = TOOLS[0]
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather?"}]
PARIS = {"city": "Paris"}
CALL = says("I look. ", call("get_weather", PARIS))


# The README's command lines for local servers (Ollama, vLLM, LM Studio). Each is used for one API.
LINES = dict(zip(APIS, re.findall(r"`toolsim (serve http://127\S+)`", (ROOT / "README.md").read_text()), strict=True))


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A proxy in front of a server with only the API ``param``. The command line is from the README, except for the
    port.

    At the end, the log, a metric and ``doctor`` must name that API.
    """
    api, home = request.param, tmp_path_factory.mktemp("home")
    with TextBackend(apis=[api]) as backend:
        line = re.sub("//[^/]+/", f"//127.0.0.1:{backend.port}/", LINES[api])
        with running(home, *line.split()) as (url, log):
            yield Stage(backend, f"{url}/v1", api)
            served = [exchange.path for exchange in backend.exchanges]
            assert len(backend.rejected) < len(APIS)
            assert len(set(served)) == 1
            assert log.read_text().count(": APIs ") == bool(backend.rejected)
            metrics = urllib.request.urlopen(f"{url}/toolsim/metrics").read().decode()
            assert set(re.findall(r'toolsim_exchanges_total\{client="\w+",backend="(\w+)"[^}]*} [1-9]', metrics)) == {
                api
            }
        shown = subprocess.run(
            [*TOOLSIM, "doctor", f"{backend.url}/v1"],
            env=environment(home),
            capture_output=True,
            text=True,
            check=False,
        )
        assert re.search(rf"APIs +{api}\b", shown.stdout), shown


# An agent program takes several seconds per turn, so `make test` runs it only over chat completions.
over_chat_first = pytest.mark.parametrize(
    "stage", parameters(APIS, lambda api: api != "chat"), indirect=True, ids=lambda api: f"over_{api}"
)


def by_responses(url: str, *, stream: bool) -> tuple[str, Any]:
    tools: list[Any] = [{"type": "function", "strict": False, **TOOL}]
    request: dict[str, Any] = {"model": "any", "input": QUESTION, "tools": tools}
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        if stream:
            with client.responses.stream(**request) as events:
                response = events.get_final_response()
        else:
            response = client.responses.create(**request)
        found = next(item for item in response.output if item.type == "function_call")
        return found.name, json.loads(found.arguments)


def by_chat(url: str, *, stream: bool) -> tuple[str, Any]:
    request: dict[str, Any] = {"model": "any", "messages": QUESTION, "tools": [{"type": "function", "function": TOOL}]}
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        if stream:
            with client.chat.completions.stream(**request) as events:
                completion: Any = events.get_final_completion()
        else:
            completion = client.chat.completions.create(**request)
        function = completion.choices[0].message.tool_calls[0].function
        return function.name, json.loads(function.arguments)


def by_messages(url: str, *, stream: bool) -> tuple[str, Any]:
    tools: list[Any] = [{"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}]
    request: dict[str, Any] = {"model": "any", "max_tokens": 99, "messages": QUESTION, "tools": tools}
    with Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0) as client:
        if stream:
            with client.messages.stream(**request) as events:
                message: Any = events.get_final_message()
        else:
            message = client.messages.create(**request)
        found = next(block for block in message.content if block.type == "tool_use")
        return found.name, found.input


SDKS = {"responses": by_responses, "chat": by_chat, "messages": by_messages}
# The other pairs are extended tests, because tests/proxy/test_api_selection.py runs all pairs with a simpler client.
PAIRS = [pytest.param(api, sdk, marks=[pytest.mark.extended] * (api != sdk)) for api, sdk in product(APIS, SDKS)]


@pytest.mark.parametrize(("stage", "sdk"), PAIRS, indirect=["stage"])
def test_each_pair_of_sdk_and_api(stage: Stage, sdk: str) -> None:
    """For each pair of SDK and backend API, all answers are correct, streamed or not, from the first answer on."""
    stage.backend.play([CALL] * 3)
    for stream in (True, False, True):
        assert SDKS[sdk](stage.base_url, stream=stream) == ("get_weather", PARIS)


@over_chat_first
@pytest.mark.skipif(CODEX is None, reason="needs codex: run `make test-clients`")
def test_codex_tool_loop(stage: Stage, tmp_path: Path) -> None:
    """Codex completes its tool loop: it runs a command, and the next prompt contains the output."""
    stage.backend.play(until_output(says("I look.\n", call("exec_command", {"cmd": "ls"})), says("One file.")))
    folder = tmp_path / "codex"
    folder.mkdir()
    printed = Codex(folder).run(stage.base_url, "gpt-5.5")
    assert [item["aggregated_output"] for item in printed.of("command_execution")] == ["notes.txt\n"]
    assert printed.words[-1] == "One file."


@over_chat_first
@pytest.mark.skipif(agent("claude") is None, reason="needs claude: run `make test-clients`")
def test_claude_code_tool_loop(stage: Stage, tmp_path: Path) -> None:
    """Claude Code completes its tool loop: it reads a file, and the next prompt contains the file's content."""
    folder = tmp_path / "claude"
    folder.mkdir()
    claude = Claude(stage.base_url.removesuffix("/v1"), folder)
    read = call("Read", {"file_path": str(claude.work / "notes.txt")})
    stage.backend.play(until_output(says("I look.\n", read), says("It is heron.")))
    assert claude.ask("What is the word?")["result"] == "It is heron."
    assert "The word is heron" in json.dumps(stage.backend.exchanges[-1].transcript)
