"""Tests for the pytest plugin in the test suite of a sample project: run alone, with xdist, and without a backend."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.cases import call
from support.mitmdump import ROOT
from support.text_backend import Exchange, TextBackend, Turn, says
from unit.recordings.test_pytest_plugin import pytest_in

pytestmark = [pytest.mark.slow, pytest.mark.ci]

AGENT = '''
import asyncio
import datetime
import json
import uuid

import httpx

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def body(messages, **more):
    return {"model": "m", "messages": messages, "tools": [WEATHER], **more}


def ask(base_url, words, attempts=2):
    """Ask until there is an answer in words, running the tools; an overloaded server is asked again."""
    messages = [{"role": "user", "content": words}]
    while True:
        answer = httpx.post(f"{base_url}/chat/completions", json=body(messages), timeout=30)
        if answer.status_code == 429 and attempts > 1:
            attempts -= 1
            continue
        answer.raise_for_status()
        message = answer.json()["choices"][0]["message"]
        if not message.get("tool_calls"):
            return message["content"]
        messages.append(message)
        for call in message["tool_calls"]:
            city = json.loads(call["function"]["arguments"])["city"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"18 degrees in {city}"})


def ask_dated(base_url, words):
    return ask(base_url, f"{words} It is {datetime.datetime.now().isoformat()}, request {uuid.uuid4()}.")


async def ask_async(base_url, words):
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.post(f"{base_url}/chat/completions", json=body([{"role": "user", "content": words}]))
        return answer.json()["choices"][0]["message"]["content"]


def read_stream(base_url, words):
    """Return the text of a streamed answer, and whether it came to its end."""
    text, done = "", False
    asked = body([{"role": "user", "content": words}], stream=True)
    with httpx.stream("POST", f"{base_url}/chat/completions", json=asked, timeout=30) as answer:
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: {"):
                for choice in json.loads(line[6:]).get("choices", ()):
                    text += choice["delta"].get("content") or ""
    return text, done
'''

SCRIPTED = """
import asyncio
import time

import httpx
import pytest
from agent import ask, ask_async, read_stream


def test_runs_the_tool(toolsim_model):
    toolsim_model.call("get_weather", city="Bonn")
    toolsim_model.answer("It is 18 degrees.")
    assert ask(toolsim_model.base_url, "What is the weather in Bonn?") == "It is 18 degrees."
    toolsim_model.assert_asked("18 degrees in Bonn", times=1)
    assert toolsim_model.asked[0].tools == ("get_weather",)


def test_by_pattern(toolsim_model):
    toolsim_model.answer("Hello.", when="^hi$")
    toolsim_model.answer("Bye.", when="^bye$")
    assert [ask(toolsim_model.base_url, words) for words in ("bye", "hi", "bye")] == ["Bye.", "Hello.", "Bye."]


def test_an_overloaded_server(toolsim_model):
    toolsim_model.next_error(429)
    toolsim_model.answer("Hello.")
    assert ask(toolsim_model.base_url, "hi") == "Hello."
    assert toolsim_model.remaining == 0


def test_a_server_that_stays_overloaded(toolsim_model):
    toolsim_model.next_error(429)
    toolsim_model.next_error(429)
    with pytest.raises(httpx.HTTPStatusError):
        ask(toolsim_model.base_url, "hi")


def test_a_cut(toolsim_model):
    toolsim_model.answer("abcdefghijklmnopqrstuvwxyz", cut=3)
    assert read_stream(toolsim_model.base_url, "the alphabet")[0] == "abcdefghijklmnopqrstu"


def test_a_slow_stream(toolsim_model):
    toolsim_model.answer("abcdefghijklmn", delay=0.2, pause=0.1)
    began = time.monotonic()
    assert read_stream(toolsim_model.base_url, "the alphabet") == ("abcdefghijklmn", True)
    assert time.monotonic() - began > 0.3


def test_with_asyncio(toolsim_model):
    toolsim_model.answer("One.", when="one")
    toolsim_model.answer("Two.", when="two")

    async def both():
        return await asyncio.gather(*(ask_async(toolsim_model.base_url, words) for words in ("one", "two")))

    assert asyncio.run(both()) == ["One.", "Two."]
"""

RECORDED = """
import pytest
from agent import ask, ask_dated, read_stream

BACKEND = "URL"


@pytest.mark.parametrize("city", ["Bonn"])
def test_weather(toolsim_replay, city):
    served = toolsim_replay(record_from=BACKEND)
    assert ask(served.base_url, f"What is the weather in {city}?") == f"18 degrees in {city}"
    served.assert_same()


def test_words(toolsim_replay):
    assert read_stream(toolsim_replay(record_from=BACKEND).base_url, "Hello") == ("Hello.", True)


def test_dates_and_ids(toolsim_replay):
    served = toolsim_replay(record_from=BACKEND, normalise=["dates", "ids"])
    assert ask_dated(served.base_url, "Hello.") == "Hello."
"""


@pytest.fixture
def backend() -> Iterator[TextBackend]:
    """Start a model that calls the weather tool when it is asked for the weather, and reports the weather once it has
    received the tool's output. To any other message, it answers "Hello."
    """

    def answer(exchange: Exchange) -> Turn:
        last = exchange.transcript[-1][1]
        if exchange.has_tool_output:
            return says("18 degrees in Bonn")
        return says(call("get_weather", {"city": "Bonn"})) if "weather in Bonn" in last else says("Hel", "lo.")

    with TextBackend(answer) as backend:
        yield backend


@pytest.mark.extended
def test_recorded_tests_pass_alone_and_in_parallel(tmp_path: Path, backend: TextBackend) -> None:
    """Once their exchanges have been recorded, the sample tests pass one after another, in parallel, and without the
    backend. A failed test leaves no recording.
    """
    # Each run of pytest starts many proxies, which is slow. Therefore, some runs include only the recorded tests.
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "conftest.py").write_text(
        "import sys, pathlib\nsys.path.insert(0, str(pathlib.Path(__file__).parent))\n"
    )
    (tmp_path / "test_scripted.py").write_text(SCRIPTED)
    recorded = RECORDED.replace("URL", f"{backend.url}/v1")
    (tmp_path / "test_recorded.py").write_text(recorded)
    recordings = tmp_path / "recordings" / "test_recorded"

    output = pytest_in(tmp_path, "test_recorded.py").stdout
    assert "3 failed" in output, output
    assert f"no .flow file at {recordings / 'test_words'}; pytest --toolsim-record=once creates the recording" in output
    assert backend.exchanges == []

    (tmp_path / "test_recorded.py").write_text(recorded.replace('"Hello.", True', '"Bye.", True'))
    output = pytest_in(tmp_path, "test_recorded.py", "--toolsim-record=once").stdout
    assert "1 failed, 2 passed" in output, output
    assert {path.name for path in recordings.iterdir()} == {"test_weather-Bonn", "test_dates_and_ids"}

    (tmp_path / "test_recorded.py").write_text(recorded)
    asked = len(backend.exchanges)
    output = pytest_in(tmp_path, "--toolsim-record=once", "-n", "2").stdout
    assert "10 passed" in output, output
    assert len(backend.exchanges) == asked + 1
    assert len(list((recordings / "test_weather-Bonn").glob("*.flow"))) == 2

    (tmp_path / "test_recorded.py").write_text(recorded.replace(backend.url, "http://127.0.0.1:9"))
    output = pytest_in(tmp_path).stdout
    assert "10 passed" in output, output

    # Without the "dates" normalizer, ``test_dates_and_ids`` no longer matches its recording, because the request
    # contains the current date.
    (tmp_path / "test_recorded.py").write_text(recorded.replace('"dates", ', ""))
    output = pytest_in(tmp_path, "test_recorded.py", "--toolsim-record=all", "-k", "weather").stdout
    assert "1 passed" in output, output
    assert len(list((recordings / "test_weather-Bonn").glob("*.flow"))) == 2
    output = pytest_in(tmp_path, "test_recorded.py", "-k", "dates").stdout
    assert "1 failed" in output, output
    assert "No recorded exchange began with this request" in output


def test_swallowed_error_fails_the_test(tmp_path: Path) -> None:
    """If a test defines no answer for a request, the test fails, even if the agent ignores the error."""
    (tmp_path / "test_red.py").write_text(
        "import httpx\n\n\n"
        "def test_red(toolsim_model):\n"
        "    url = f'{toolsim_model.base_url}/chat/completions'\n"
        "    httpx.post(url, json={'model': 'm', 'messages': [{'role': 'user', 'content': 'who?'}]}, timeout=30)\n"
    )
    output = pytest_in(tmp_path).stdout
    assert "toolsim_model: the test defines no answer for this request: 'who?'" in output
    assert "1 failed" in output


def test_documented_example_works(tmp_path: Path) -> None:
    """The example on the documentation page runs unchanged with an agent that calls the tool and reports the tool's
    output.
    """
    [example] = re.findall(
        r"<!-- scripted -->\n```python\n(.*?)```", (ROOT / "addon/docs/record.md").read_text(), re.DOTALL
    )
    (tmp_path / "agent.py").write_text(AGENT)
    agent = (
        "from agent import ask\n\ndef my_agent(base_url):\n    return ask(base_url, 'What is the weather in Bonn?')\n\n"
    )
    (tmp_path / "test_page.py").write_text(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{agent}{example}")
    output = pytest_in(tmp_path).stdout
    assert "1 passed" in output, output


def test_invalid_input_is_one_line(tmp_path: Path) -> None:
    """An invalid URL, pattern, option or recording makes the test that uses it fail with a one-line error instead of a
    traceback.
    """
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings" / "a.flow").write_bytes(b"nonsense")
    (tmp_path / "test_bad.py").write_text(
        "def test_address(toolsim_replay):\n    toolsim_replay('new', record_from='localhost:9')\n\n\n"
        "def test_pattern(toolsim_replay):\n    toolsim_replay('recordings', normalise=['(']).base_url\n\n\n"
        "def test_option(toolsim_model):\n    toolsim_model.set_option('manifes', 'x')\n"
        "    toolsim_model.base_url\n\n\n"
        "def test_broken(toolsim_replay):\n    toolsim_replay('recordings').base_url\n"
    )
    output = pytest_in(tmp_path, "--toolsim-record=once").stdout
    assert "4 failed" in output, output
    assert "record_from: got 'localhost:9', expected a URL such as" in output
    assert "normalise: '(' is neither dates, times, ids nor a pattern: missing )" in output
    assert "toolsim_manifes: no such option; did you mean toolsim_manifest?" in output
    assert "E   " not in output, output
