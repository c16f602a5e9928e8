"""Tests for turns in a real mitmweb, driven by headless Chromium.

``TOOLSIM_SCREENSHOTS=1`` also updates the screenshots.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from support.chromium import CHROMIUM, Chromium
from support.line import Line
from support.mitmdump import ROOT, Mitmdump
from support.ports import free_port
from support.text_backend import TextBackend, refuses, says

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

MITMWEB = (sys.executable, "-c", "from mitmproxy.tools.main import mitmweb; mitmweb()")
PASSWORD = "correct horse"
PAGE = (ROOT / "addon" / "docs" / "inspect.md").read_text()
PICTURES = Path(__file__).parent / "screenshots"
TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather of a city, now or on some days.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "days": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    },
    {
        "type": "function",
        "name": "write_file",
        "description": "Write a text file.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
            "additionalProperties": False,
        },
    },
]
HISTORY = [
    {"type": "message", "role": "user", "content": "How was the weather in Bonn yesterday?"},
    {
        "type": "function_call",
        "id": "fc_001",
        "call_id": "fc_001",
        "name": "get_weather",
        "arguments": '{"city":"Bonn","days":["2026-11-20"]}',
    },
    {
        "type": "function_call_output",
        "call_id": "fc_001",
        "output": '{"celsius": 7.0, "sky": "overcast, later rain", "wind": {"from": "west", "beaufort": 5}}',
    },
    {"type": "message", "role": "assistant", "content": "Grey: 7 degrees, rain later on."},
    {"type": "message", "role": "user", "content": "And in Köln today? Write me a script that says when it rains."},
]
SCRIPT = 'import sys\n\nif "rain" in sys.argv:\n    print("Take an umbrella.")'


def block(name: str, **arguments: str) -> str:
    call = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


TWO_CALLS = says(
    "The forecast, and a first ",
    "draft of the script.\n\n",
    '<tool_call>{"name":"get_weather","arguments":{"city":"Köln","unit":"celsius",}}</tool_call>\n',
    block("write_file", path="umbrella.py", content=SCRIPT),
)


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend() as backend:
        yield backend


@pytest.fixture(scope="module")
def web_port() -> int:
    """A free port that is chosen before mitmweb starts, because mitmweb does not report a port that it chooses."""
    return free_port()


@pytest.fixture(scope="module")
def proxy(backend: TextBackend, web_port: int) -> Iterator[Mitmdump]:
    options = {"web_port": web_port, "web_password": PASSWORD, "web_open_browser": False}
    with Mitmdump(backend.url, command=MITMWEB, **options) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with Chromium(width=1400, height=1100) as chromium:
        yield chromium


@pytest.fixture
def page(chromium: Chromium, proxy: Mitmdump, backend: TextBackend, web_port: int) -> Iterator[Chromium]:
    """The flow list. It contains a turn with two calls, and a turn that the backend refused."""
    backend.play([TWO_CALLS, refuses(429, "Slow down, please.")])
    with Line(proxy.url) as line:
        for _ in range(2):
            body = {"model": "glm-text-1", "input": HISTORY, "tools": TOOLS, "stream": True, "temperature": 0.2}
            line.post("/v1/responses", body)
    chromium.open(f"http://127.0.0.1:{web_port}/?token={quote(PASSWORD)}")
    chromium.wait_for("document.querySelectorAll('.flow-table td.col-path').length >= 2")
    yield chromium
    chromium.open("about:blank")


def rows(page: Chromium) -> list[str]:
    """Return the paths in the flow list, including their markers."""
    return list(page.run("[...document.querySelectorAll('.flow-table td.col-path')].map(e => e.innerText)"))


def open_flow(page: Chromium, number: int) -> None:
    page.run(f"[...document.querySelectorAll('.flow-table td.col-path')].at({number}).click()")
    page.wait_for("!!document.querySelector('.flow-detail')")


def shown(page: Chromium, wanted: str) -> str:
    """Wait until the content view contains ``wanted``; return the complete text of the view."""
    content = "(document.querySelector('.contentview pre') || document.body).innerText"
    page.wait_for(f"{content}.includes({json.dumps(wanted)})")
    return str(page.run(content))


def view_name(page: Chromium) -> str:
    return str(page.run("document.querySelector('.contentview h5').innerText"))


def picture(page: Chromium, name: str, folder: Path, height: int, of: str = ".flow-detail") -> Path:
    folder = PICTURES if os.environ.get("TOOLSIM_SCREENSHOTS") else folder
    box = f"document.querySelector('{of}').getBoundingClientRect()"
    path = folder / name
    left, top, width = (int(page.run(f"{box}.{side}")) for side in ("left", "top", "width"))
    page.screenshot(path, x=left, y=top, width=width, height=height)
    return path


def comments(page: Chromium) -> list[str]:
    """Return the comments in the flow list."""
    return list(page.run("[...document.querySelectorAll('.flow-table td.col-comment')].map(e => e.innerText)"))


def open_list(page: Chromium, port: int, recipe: str = "") -> None:
    page.open("about:blank")
    page.open(f"http://127.0.0.1:{port}/?token={quote(PASSWORD)}#/flows?s={quote(recipe)}")
    page.wait_for("!!document.querySelector('.flow-table td.col-path')")


def test_page_shows_both_calls(page: Chromium, tmp_path: Path) -> None:
    """For a streamed answer, the page shows the model's blocks, their verdicts, and two calls with their arguments."""
    open_flow(page, -2)
    page.click("Response")
    text = shown(page, "THE CLIENT GOT")
    assert view_name(page) == "toolsim"
    assert '│ <tool_call>{"name":"get_weather","arguments":{"city":"Köln"' in text
    assert "✓ call of get_weather · repaired: TRAILING_COMMA" in text
    client = text.partition("THE CLIENT GOT")[2]
    assert '→ get_weather   fc_002\n    {"city": "Köln", "unit": "celsius"}' in client
    assert "→ write_file   fc_003" in client
    assert '┆ if "rain" in sys.argv:' in client
    assert picture(page, "answer.png", tmp_path, 845).stat().st_size < 120_000


def test_view_can_be_selected(page: Chromium) -> None:
    """In mitmweb's menu, the user can select toolsim's view, or the raw bytes of the client's stream."""
    open_flow(page, -2)
    page.click("Response")
    shown(page, "THE CLIENT GOT")
    page.click("View: auto")
    page.click("raw", ".dropdown-menu a")
    assert "event: response.function_call_arguments.done" in shown(page, "event: response.completed")
    page.click("View: raw")
    page.click("toolsim", ".dropdown-menu a")
    shown(page, "THE CLIENT GOT")
    page.click("View: toolsim")
    page.click("auto", ".dropdown-menu a")


def test_revert_restores_the_originals(page: Chromium, tmp_path: Path) -> None:
    """The request page shows the rewritten request and, after "Revert", the client's request and the model's answer."""
    open_flow(page, -2)
    page.click("Request")
    text = shown(page, "as sent to the backend")
    assert 'get_weather(city: string, unit?: "celsius" | "fahrenheit", days?: string[])' in text
    assert "▸ the tool catalog, collapsed: 2 tools" in text
    assert '│ <tool_call>{"name": "get_weather", "arguments": {"city":"Bonn",' in text
    assert picture(page, "request.png", tmp_path, 845).stat().st_size < 120_000
    page.click("Revert")
    text = shown(page, "▌tool")
    assert "the tool catalog, collapsed" not in text
    page.click("Response")
    text = shown(page, "THE MODEL WROTE")
    assert "✓ call of write_file" in text
    assert "THE CLIENT GOT" not in text


def test_reverted_request_can_be_replayed(page: Chromium, backend: TextBackend) -> None:
    """If the user clicks "Revert" and then "Replay", the client's original request is sent through the addon again."""
    open_flow(page, -1)
    page.click("Revert")
    page.click("Request")
    shown(page, "▌tool")
    backend.play([says("Now I can.")])
    page.click("Replay")
    assert "▸ the tool catalog, collapsed" in shown(page, "as sent to the backend")
    page.click("Response")
    assert "The client got the same text." in shown(page, "Now I can.")
    assert "✖" not in rows(page)[-1]


def test_request_can_be_replayed_without_revert(page: Chromium, backend: TextBackend, proxy: Mitmdump) -> None:
    """If the user clicks "Replay" without "Revert", the client's original request is sent, with its tools."""
    open_flow(page, -2)
    page.click("Request")
    shown(page, "as sent to the backend")
    backend.play([says("Once more. ", block("write_file", path="a", content="b"))])
    page.click("Replay")
    # Wait for the answer, because mitmweb reports an error if it requests the answer before the answer exists.
    page.wait_for(
        "[...document.querySelectorAll('td.col-comment')].at(-2).innerText.startsWith('1 call: write_file · #')"
    )
    page.click("Response")
    assert "✓ call of write_file" in shown(page, "Once more.")
    assert rows(page)[-2] == f"{proxy.url}/v1/responses"


def test_list_distinguishes_turns(chromium: Chromium, tmp_path: Path) -> None:
    """Each row in the flow list shows the turn's outcome, its conversation and its question. Requests for metrics have
    no row.
    """
    web_port = free_port()
    options = {"web_port": web_port, "web_password": PASSWORD, "web_open_browser": False}
    with (
        Mitmdump(command=MITMWEB, toolsim_backend="scripted", **options) as proxy,
        Line(proxy.url) as line,
    ):
        proxy.wait_for("scripted backend answers")

        def ask(*messages: dict[str, Any]) -> list[dict[str, Any]]:
            """Return the conversation with the model's answer and the outputs of the answer's calls appended."""
            tools = [{"type": "function", "function": {**TOOLS[0], "type": None}}]
            reply = line.post("/v1/chat/completions", {"model": "m", "messages": messages, "tools": tools})
            if reply.status != 200:
                return []
            answer = reply.json()["choices"][0]["message"]
            calls = answer.get("tool_calls") or []
            outputs = [{"role": "tool", "tool_call_id": call["id"], "content": "18 degrees"} for call in calls]
            return [*messages, answer, *outputs]

        first = ask(user("What is the weather in Bonn and in Paris?"))
        ask(user("Hello"))
        first = ask(*first)
        assert line.request("GET", "/toolsim/metrics").status == 200
        ask(*first, user("And the weather in Rome?"))
        for direction in ("429", "malformed", "unknown"):
            ask(user(f"What is the weather in Köln? [{direction}]"))
        line.post("/v1/chat/completions", {"model": "m", "messages": [user("Hello")]})
        line.request("GET", "/v1/models")
        open_list(chromium, web_port)
        # A row appears when its request arrives, and is updated when its answer arrives.
        chromium.wait_for("[...document.querySelectorAll('td.col-status')].filter(e => e.innerText).length >= 9")
        own = f"{proxy.url}/v1/chat/completions"
        assert rows(chromium) == [*[own] * 4, f"✖\n{own}", own, f"⚠\n{own}", own, f"{proxy.url}/v1/models"]
        listed = Request(f"http://127.0.0.1:{web_port}/flows?token={quote(PASSWORD)}")
        with urlopen(listed, timeout=10) as answer:
            requests = [flow["request"] for flow in json.load(answer)]
        assert {(each["port"], each["path"]) for each in requests[:-1]} == {(proxy.port, "/v1/chat/completions")}
        assert comments(chromium) == [
            "2 calls: get_weather, get_weather · #1 turn 1 · m chat · “What is the weather in Bonn and in Paris?”",
            "no call · #2 turn 1 · m chat · “Hello”",
            "no call · #1 turn 1 step 2 · m chat · “What is the weather in Bonn and in Paris?”",
            "1 call: get_weather · #1 turn 2 · m chat · “And the weather in Rome?”",
            "HTTP 429 · #3 turn 1 · m chat · “What is the weather in Köln? [429]”",
            "1 call: get_weather · 1 repair: MISSING_BRACE:get_weather · #4 turn 1 · m chat"
            " · “What is the weather in Köln? [malformed]”",
            "no call · 1 parse failure: UNKNOWN_TOOL:get_weather_of_another_client · #5 turn 1 · m chat"
            " · “What is the weather in Köln? [unknown]”",
            "no tools · #2 turn 1 · m chat · “Hello”",
            "",
        ]
        width = chromium.run("document.querySelector('.flow-table td.col-comment').offsetWidth")
        assert width > 900
        assert picture(chromium, "list.png", tmp_path, 314, of=".flow-table").stat().st_size < 120_000
        open_list(chromium, web_port, '~comment "#1 "')
        assert len(rows(chromium)) == 3
        chromium.open("about:blank")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_view_shows_prompt_and_model_text(page: Chromium, tmp_path: Path) -> None:
    """The ``toolsim-prompt`` view shows the exact prompt that the model received, and the exact text that it wrote."""
    open_flow(page, -2)
    page.click("Request")
    assert "the view toolsim-prompt expands it" in " ".join(shown(page, "as sent to the backend").split())
    page.click("View: auto")
    page.click("toolsim-prompt", ".dropdown-menu a")
    text = shown(page, "# CLIENT TOOL CATALOG")
    assert "- The weather of a city, now or on some days." in text
    assert '  <tool_call>{"name": "get_weather", "arguments": {"city": ' in text
    assert picture(page, "prompt.png", tmp_path, 845).stat().st_size < 120_000
    page.click("Response")
    shown(page, "THE CLIENT GOT")
    page.click("View: auto")
    page.click("toolsim-prompt", ".dropdown-menu a")
    page.wait_for("!document.querySelector('.contentview').innerText.includes('THE CLIENT GOT')")
    assert TWO_CALLS.text.split("\n")[0] in shown(page, "umbrella.py")


def test_failed_turn_is_marked_and_explained(page: Chromium) -> None:
    """If the backend refuses a request, the flow is marked in the list, and its page shows the backend's message."""
    before, failed = rows(page)[-2:]
    assert "✖" in failed
    assert "✖" not in before
    open_flow(page, -1)
    page.click("Response")
    assert "429" in shown(page, "Slow down, please.")
    page.click("Comment")
    page.wait_for("document.body.innerText.includes('HTTP 429')")


@pytest.mark.ci
def test_mitmweb_accepts_documented_filters(page: Chromium, web_port: int) -> None:
    """mitmweb accepts every documented filter, and the filters find the documented flows."""
    section = PAGE.split("<!-- inspect -->")[1].split("<!-- /inspect -->")[0]
    everything = len(rows(page))
    understood = {}
    for recipe in ("~meta x", *re.findall(r"^\| `(~[^`]+)` \|", section, re.MULTILINE)):
        page.open("about:blank")
        page.open(f"http://127.0.0.1:{web_port}/?token={quote(PASSWORD)}#/flows?s={quote(recipe)}")
        page.wait_for("!!document.querySelector('.flow-table')")
        page.wait_for("!!document.querySelector('.filter-input input').value")
        understood[recipe] = not page.run("!!document.querySelector('.filter-input.has-error')")
    # mitmproxy's filter language supports ~meta, but mitmweb's does not.
    assert [recipe for recipe, is_so in understood.items() if not is_so] == ["~meta x"]
    found = {}
    failed, doubtful = '~marker "[✖x]"', '~marker "[⚠w]"'
    assert failed in understood
    assert doubtful in understood
    for recipe in ('~comment "#[0-9]+ turn"', "~marked", '~comment "[0-9] repair"', '~comment "HTTP 429"', failed):
        open_list(page, web_port, recipe)
        found[recipe] = len(rows(page))
    assert found['~comment "#[0-9]+ turn"'] == everything
    assert 0 < found['~comment "[0-9] repair"'] < everything
    assert 0 < found['~comment "HTTP 429"'] == found["~marked"] == found[failed]
