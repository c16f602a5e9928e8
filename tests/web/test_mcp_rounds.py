"""Tests in a real mitmweb for an answer that calls MCP tools: the rounds in the list, and approval by the operator."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.chromium import CHROMIUM, Chromium
from support.mcp_servers import BAD
from support.mitmdump import Mitmdump
from support.ports import free_port
from support.text_backend import TextBackend, says

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

MITMWEB = (sys.executable, "-c", "from mitmproxy.tools.main import mitmweb; mitmweb()")
PASSWORD = "correct horse"
PICTURES = Path(__file__).parent / "screenshots"


def block(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[Chromium, Mitmdump, TextBackend]]:
    """The flow list of a proxy whose operator must approve calls."""
    servers = {"orchard": BAD | {"require_approval": "never"}, "files": BAD}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    options: dict[str, Any] = {"toolsim_mcp_config": str(tmp_path / "mcp.json"), "toolsim_mcp_approval": "operator"}
    port = free_port()
    options |= {"web_port": port, "web_password": PASSWORD, "web_open_browser": False}
    with (
        TextBackend() as backend,
        Mitmdump(backend.url, command=MITMWEB, **options) as proxy,
        Chromium(width=1400, height=1100) as page,
    ):
        page.open(f"http://127.0.0.1:{port}/?token={quote(PASSWORD)}")
        page.wait_for("!!document.querySelector('.flow-table, .main-view')")
        yield page, proxy, backend


def comments(page: Chromium) -> list[str]:
    return list(page.run("[...document.querySelectorAll('.flow-table td.col-comment')].map(e => e.innerText)"))


def command(page: Chromium, name: str, flows: str) -> None:
    """Run a command, as mitmweb's command bar does."""
    page.run(
        f"fetch('/commands/{name}', {{method: 'POST', body: JSON.stringify({{arguments: [{json.dumps(flows)}]}}),"
        " headers: {'Content-Type': 'application/json',"
        " 'X-XSRFToken': document.cookie.match(/_mitmproxy_xsrf=([^;]+)/)[1]}})"
    )


@pytest.mark.ci
@pytest.mark.slow
def test_waiting_call_is_approved(page: tuple[Chromium, Mitmdump, TextBackend], tmp_path: Path) -> None:
    """A flow that waits for approval is marked. Its call runs once, and only after approval. Each round has a row."""
    chromium, proxy, backend = page
    for name, record in (("toolsim.approve", "[function_call_output"), ("toolsim.refuse", "The operator refused")):
        backend.play(
            [
                says("Let me count first.\n", block("orchard__echo", text="apples")),
                says("That is 3. ", block("files__echo", text="3 apples")),
                says("Noted: 3 apples."),
            ]
        )
        answers: list[httpx.Response] = []
        body = {
            "model": "glm-text-1",
            "messages": [{"role": "user", "content": "How many apples are there? Note it."}],
        }
        url = f"{proxy.url}/v1/chat/completions"
        asking = threading.Thread(target=lambda: answers.append(httpx.post(url, json=body, timeout=60)))  # noqa: B023
        asking.start()
        waits = (
            "[...document.querySelectorAll('.flow-table td.col-comment')].some(e => e.innerText.includes('waiting'))"
        )
        chromium.wait_for(waits, 60)
        assert any("waiting for approval: files.echo" in comment for comment in comments(chromium))
        assert len(backend.exchanges) == 2
        command(chromium, name, '~comment "waiting for approval"')
        asking.join(60)
        assert answers[0].json()["choices"][0]["message"]["content"].endswith("Noted: 3 apples.")
        assert record in backend.exchanges[-1].transcript[-1][1]
        *_, output = backend.exchanges[-1].transcript[-1][1].rpartition("output=")
        assert ("3 apples" in output) == (name == "toolsim.approve")
        chromium.wait_for(f"!{waits}", 60)
        if name == "toolsim.approve":
            assert sum("round " in comment for comment in comments(chromium)) == 3
            folder = PICTURES if os.environ.get("TOOLSIM_SCREENSHOTS") else tmp_path
            box = "document.querySelector('.flow-table').getBoundingClientRect()"
            left, top, width = (int(chromium.run(f"{box}.{side}")) for side in ("left", "top", "width"))
            chromium.screenshot(folder / "rounds.png", x=left, y=top, width=width, height=180)
