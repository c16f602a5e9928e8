"""Turns in a real mitmweb, read and clicked by a headless Chromium.

With ``TOOLSIM_SCREENSHOTS=1`` the pictures that README shows are taken anew.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from support.chromium import CHROMIUM, Chromium
from support.line import Line
from support.mitmdump import ROOT, Mitmdump
from support.text_backend import TextBackend, refuses, says

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

MITMWEB = (sys.executable, "-c", "from mitmproxy.tools.main import mitmweb; mitmweb()")
PASSWORD = "correct horse"
README = (ROOT / "README.md").read_text()
PICTURES = Path(__file__).parent / "screenshots"
# The right half of the window: the flow that is looked at.
PANE = {"x": 700, "width": 700}

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
    """A port that was free a moment ago: mitmweb does not tell which one it took by itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    """The flow list, with one turn of two calls and one that the backend refused."""
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
    """The paths of the flow list, markers included."""
    return list(page.run("[...document.querySelectorAll('.flow-table td.col-path')].map(e => e.innerText)"))


def open_flow(page: Chromium, number: int) -> None:
    page.run(f"[...document.querySelectorAll('.flow-table td.col-path')].at({number}).click()")
    page.wait_for("!!document.querySelector('.flow-detail')")


def shown(page: Chromium, wanted: str) -> str:
    """Wait until the content view shows ``wanted``; return all that it shows."""
    content = "(document.querySelector('.contentview pre') || document.body).innerText"
    page.wait_for(f"{content}.includes({json.dumps(wanted)})")
    return str(page.run(content))


def view_name(page: Chromium) -> str:
    return str(page.run("document.querySelector('.contentview h5').innerText"))


def picture(page: Chromium, name: str, folder: Path, height: int) -> Path:
    folder = PICTURES if os.environ.get("TOOLSIM_SCREENSHOTS") else folder
    top = page.run("document.querySelector('.flow-detail').getBoundingClientRect().top")
    path = folder / name
    page.screenshot(path, y=int(top), height=height, **PANE)
    return path


def test_two_calls_can_be_read(page: Chromium, tmp_path: Path) -> None:
    """Of a streamed answer the page shows the model's blocks, their verdicts, and both calls with their arguments."""
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


def test_the_view_can_be_chosen(page: Chromium) -> None:
    """The view stands in mitmweb's menu, beside the raw bytes of the stream as the client got them."""
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


def test_revert_brings_the_originals_back(page: Chromium, tmp_path: Path) -> None:
    """The request is shown as the backend gets it; "Revert" shows the client's own, and the model's own answer."""
    open_flow(page, -2)
    page.click("Request")
    text = shown(page, "as the backend gets it")
    assert 'get_weather(city: string, unit?: "celsius" | "fahrenheit", days?: string[])' in text
    assert "▸ the tool catalog, folded: 2 tools" in text
    assert '│ <tool_call>{"name": "get_weather", "arguments": {"city":"Bonn",' in text
    assert picture(page, "request.png", tmp_path, 845).stat().st_size < 120_000
    page.click("Revert")
    text = shown(page, "▌tool")
    assert "the tool catalog, folded" not in text
    page.click("Response")
    text = shown(page, "THE MODEL WROTE")
    assert "✓ call of write_file" in text
    assert "THE CLIENT GOT" not in text


def test_a_reverted_request_can_be_replayed(page: Chromium, backend: TextBackend) -> None:
    """ "Revert", then "Replay" sends the client's own request through the addon once more."""
    open_flow(page, -1)
    page.click("Revert")
    page.click("Request")
    shown(page, "▌tool")
    backend.play([says("Now I can.")])
    page.click("Replay")
    assert "▸ the tool catalog, folded" in shown(page, "as the backend gets it")
    page.click("Response")
    assert "The client got the same." in shown(page, "Now I can.")
    assert "❌" not in rows(page)[-1]


def test_a_failed_turn_is_marked_and_explained(page: Chromium) -> None:
    """A refusal by the backend carries a mark in the list, and its message on its page."""
    before, failed = rows(page)[-2:]
    assert "❌" in failed
    assert "❌" not in before
    open_flow(page, -1)
    page.click("Response")
    assert "429" in shown(page, "Slow down, please.")
    page.click("Comment")
    page.wait_for("document.body.innerText.includes('HTTP 429')")


def test_filters_of_readme(page: Chromium, web_port: int) -> None:
    """mitmweb has a filter language of its own: it understands each filter of README, and finds what it says."""
    section = README.split("<!-- inspect -->")[1].split("<!-- /inspect -->")[0]
    everything = len(rows(page))
    understood = {}
    for recipe in ("~meta x", *re.findall(r"^\| `(~[^`]+)` \|", section, re.MULTILINE)):
        page.open("about:blank")
        page.open(f"http://127.0.0.1:{web_port}/?token={quote(PASSWORD)}#/flows?s={quote(recipe)}")
        page.wait_for("!!document.querySelector('.flow-table')")
        page.wait_for("!!document.querySelector('.filter-input input').value")
        understood[recipe] = not page.run("!!document.querySelector('.filter-input.has-error')")
    # mitmproxy's own language has ~meta, mitmweb's has not.
    assert [recipe for recipe, is_so in understood.items() if not is_so] == ["~meta x"]
    found = {}
    for recipe in ("~comment ^toolsim", "~marked", "~comment repair", '~comment "HTTP 429"'):
        page.open("about:blank")
        page.open(f"http://127.0.0.1:{web_port}/?token={quote(PASSWORD)}#/flows?s={quote(recipe)}")
        page.wait_for("!!document.querySelector('.flow-table td.col-path')")
        found[recipe] = len(rows(page))
    assert found["~comment ^toolsim"] == everything
    assert 0 < found["~comment repair"] < everything
    assert 0 < found['~comment "HTTP 429"'] == found["~marked"]
