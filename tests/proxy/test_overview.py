"""Tests for the overview page at ``/toolsim/``, which is HTML for people and JSON for programs."""

from __future__ import annotations

import json
from html import unescape
from html.parser import HTMLParser
from typing import Any

from support.line import Line, Reply
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend, stream_of
from toolsim.version import __version__

PATH = "/toolsim/"
HOSTILE = "<script>alert(1)</script>'\"&"


def facts(line: Line, path: str = PATH, **headers: str) -> dict[str, Any]:
    answer = line.request("GET", path, Accept="application/json", **headers)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    return dict(answer.json())


class Elements(HTMLParser):
    """Parses a page into its elements with their attributes, and its text."""

    def __init__(self, page: Reply) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page.body.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_overview_of_a_builtin_backend() -> None:
    """The overview page shows the base URLs, the models, a command, and the outcomes of the last turns. It is also
    served at ``/``.
    """
    with Mitmdump(toolsim_backend="scripted") as proxy, Line(proxy.url) as line:
        line.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "secret words"}]})
        page = line.request("GET", "/", Accept="text/html,application/xhtml+xml,*/*")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        shown = Elements(page)
        for text in (__version__, f"{proxy.url}/v1", "a scripted model", "toolsim-scripted", "✓ m · chat", "curl -s"):
            assert text in shown.text, text
        assert "secret" not in shown.text
        # The page does not load resources or run scripts.
        assert {tag for tag, _ in shown.found} & {"script", "link", "img", "iframe", "form"} == set()
        assert not any({"src", "href"} & attributes.keys() for _, attributes in shown.found)
        assert "default-src 'none'" in page.headers["content-security-policy"]
        found = facts(line)
        assert (found["name"], found["version"], found["models"]) == ("toolsim", __version__, ["toolsim-scripted"])
        assert found["base_urls"] == {"openai": f"{proxy.url}/v1", "anthropic": proxy.url}
        assert len(found["turns"]) == 1
        head = line.request("HEAD", PATH)
        assert (head.status, head.body) == (200, b"")
        assert line.request("GET", "/models").json()["data"][0]["id"] == "toolsim-scripted"


def test_overview_of_a_real_backend() -> None:
    """If the backend is a separate server, it receives requests for ``/``. On the overview page, text from the backend
    and from clients is escaped.

    The model list is requested only once.
    """

    async def behave(answer: Answer) -> None:
        path = answer.asked.path
        body = {"data": [{"id": HOSTILE}]} if path.endswith("/models") else {"path": path}
        await answer.whole(json.dumps(body).encode(), Content_Type="application/json")

    with RawBackend() as backend, Mitmdump(backend.url, toolsim_backend="chat") as proxy, Line(proxy.url) as line:
        backend.play(behave)
        assert line.request("GET", "/").json() == {"path": "/"}
        pages = [line.request("GET", PATH) for _ in range(3)]
        shown = Elements(pages[0])
        assert {tag for tag, _ in shown.found} & {"script", "img"} == set()
        assert HOSTILE in unescape(shown.text)
        assert f"{backend.url}/v1" in shown.text
        assert [asked.path for asked in backend.asked if asked.path.endswith("/models")] == ["/v1/models"]
        backend.play(stream_of("Hi"))
        line.post("/v1/chat/completions", {"model": HOSTILE, "stream": True, "messages": []})
        assert {tag for tag, _ in Elements(line.request("GET", PATH)).found} & {"script", "img"} == set()


def test_overview_reports_backend_down() -> None:
    """If the backend is down, the overview page is still served and reports the problem."""
    with Mitmdump("http://127.0.0.1:9") as proxy, Line(proxy.url) as line:
        found = facts(line)
        assert (found["models"], found["backend"]) == ([], "http://127.0.0.1:9/v1")
        assert "refused" in found["problem"]
        assert "refused" in Elements(line.request("GET", PATH)).text


def test_overview_without_the_key_is_short() -> None:
    """Without the key, the overview page shows only toolsim's name and base URLs."""
    with Mitmdump(toolsim_backend="scripted", toolsim_api_key="k") as proxy, Line(proxy.url) as line:
        public = facts(line)
        assert public == {
            "name": "toolsim",
            "base_urls": {"openai": f"{proxy.url}/v1", "anthropic": proxy.url},
            "requires_key": True,
        }
        assert facts(line, authorization="Bearer wrong") == public
        text = Elements(line.request("GET", "/")).text
        assert "toolsim-scripted" not in text
        assert __version__ not in text
        assert facts(line, authorization="Bearer k")["models"] == ["toolsim-scripted"]


def test_rebound_name_and_host_header() -> None:
    """A web page that uses DNS rebinding cannot read the overview page. The value of the Host header is escaped."""
    with Mitmdump(toolsim_backend="scripted") as proxy, Line(proxy.url) as line:
        assert line.request("GET", PATH, Host="rebound.example").status == 403
    with Mitmdump(toolsim_backend="scripted", toolsim_api_key="k") as proxy, Line(proxy.url) as line:
        page = line.request("GET", PATH, Host="x<b>y")
        assert "<b>" not in page.body.decode()
