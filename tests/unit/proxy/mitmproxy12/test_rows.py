"""Rows in the flow lists of mitmweb and the console. The tests in tests/web use the real programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.test import tflow
from mitmproxy.tools.console import common
from mitmproxy.tools.web import app
from toolsim.proxy.metadata import CLIENT_URL, SENT
from toolsim.proxy.mitmproxy12 import backup, rows

OWN = "http://localhost:8080/v1/chat/completions?a=b"
BACKEND = "http://127.0.0.1:41623/v1/responses"


@pytest.fixture
def _installed() -> Iterator[None]:
    rows.install()
    rows.install()
    yield
    rows.uninstall()


def flow_of(url: object = OWN, comment: str = "") -> HTTPFlow:
    flow = tflow.tflow(resp=True)
    flow.request.url = BACKEND
    flow.comment = comment
    flow.metadata[CLIENT_URL] = url
    return flow


def web_url(flow: HTTPFlow) -> str:
    """Return a flow's URL as mitmweb displays it."""
    shown = app.flow_to_json(flow)["request"]
    port = "" if {"http": 80, "https": 443}[shown["scheme"]] == shown["port"] else f":{shown['port']}"
    return f"{shown['scheme']}://{shown['pretty_host']}{port}{shown['path']}"


def console_text(flow: HTTPFlow, mode: common.RenderMode = common.RenderMode.TABLE, **how: Any) -> str:
    """Return a row of the console as plain text, with a space between columns."""
    widget = common.format_flow(flow, render_mode=mode, focused=False, **how)
    # urwid has no type annotations.
    drawn: Any = widget.render((200,))
    return "\n".join(line.decode().rstrip() for line in drawn.text)


@pytest.mark.parametrize(
    "url", [OWN, "https://api.openai.com/v1/responses", "http://[::1]:8080/", "http://localhost/v1/models"]
)
@pytest.mark.usefixtures("_installed")
def test_flow_list_shows_the_clients_url(url: str) -> None:
    """The flow list shows the client's URL, while the flow itself keeps the backend's URL."""
    flow = flow_of(url)
    before = flow.get_state()
    # mitmproxy writes IPv6 addresses without brackets.
    drawn = url.replace("[::1]", "::1")
    assert web_url(flow) == drawn
    for how in ({}, {"hostheader": True}):
        assert console_text(flow, common.RenderMode.LIST, **how).splitlines()[0].split()[1] == drawn
    assert flow.get_state() == before


@pytest.mark.usefixtures("_installed")
def test_console_shows_the_comment() -> None:
    """The console shows a flow's comment after the path, on the same line and aligned with the comments in other
    rows.
    """
    long, short = flow_of(comment="1 call: f · “a\nb”"), flow_of("http://a/v1/models", "no call")
    row = console_text(long)
    assert "/v1/chat/completions?a=b  1 call: f · “a b” " in row
    assert "/v1/models            no call " in console_text(short)
    assert web_url(long) == OWN


@pytest.mark.parametrize("url", ["", "http://", "http:///v1/responses", "nonsense", "http://a", 7, None])
@pytest.mark.usefixtures("_installed")
def test_other_flows_are_displayed_unchanged(url: object) -> None:
    """Flows without valid toolsim metadata look the same as without toolsim."""
    flow = flow_of(url)
    assert web_url(flow) == BACKEND
    assert "41623" not in console_text(flow)
    assert "/v1/responses" in console_text(flow)
    assert app.flow_to_json(tflow.tdnsflow())["type"] == "dns"
    assert "DNS" in console_text(tflow.tdnsflow())


@pytest.mark.usefixtures("_installed")
def test_edited_url_is_shown() -> None:
    """If the user edits a flow's URL, the list shows the edited URL. However, once toolsim has processed the flow, the
    list shows the client's URL.
    """
    flow = flow_of()
    flow.backup()
    flow.request.path = "/edited"
    assert web_url(flow).endswith(":41623/edited")
    backup.begin(flow)
    flow.metadata[SENT] = "digest"
    assert web_url(flow) == OWN


def test_unloading_restores_mitmproxys_functions() -> None:
    """After the addon is unloaded, mitmproxy's own functions are used again."""
    original = app.flow_to_json, common.format_flow
    rows.install()
    assert (app.flow_to_json, common.format_flow) != original
    rows.uninstall()
    rows.uninstall()
    assert (app.flow_to_json, common.format_flow) == original


def test_other_programs_are_not_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a program without a flow list, such as mitmdump, nothing is patched."""
    monkeypatch.delattr(app, "flow_to_json")
    monkeypatch.delitem(rows.sys.modules, "mitmproxy.tools.console.common")
    rows.install()
    rows.uninstall()
    assert not hasattr(app, "flow_to_json")
    assert "mitmproxy.tools.console.common" not in rows.sys.modules
