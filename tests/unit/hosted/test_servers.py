"""Which servers a request may name, and on what terms."""

from __future__ import annotations

from typing import Any

import pytest
from support.each import each
from toolsimlib.errors import BadRequest
from toolsimlib.hosted.servers import EVERY, Filter, Server, read_tool

URL = "https://docs.example/mcp"

OWN = Server("files", ("npx",), free=(EVERY,))
KNOWN = {"files": OWN, "shy": Server("shy", ("npx",))}


def tool(**fields: Any) -> Server:
    return read_tool({"type": "mcp", **fields}, "tools[0]", KNOWN, ("docs.example", "127.0.0.1:3000"))


def test_a_request_names_a_server() -> None:
    """One of the file by its label, or one of an allowed host by its URL, with headers and a token of its own."""
    named = tool(server_label="docs", server_url=URL, headers={"X": "y", "authorization": "no"}, authorization="t")
    assert named.headers == (("X", "y"), ("Authorization", "Bearer t"))
    assert named.needs_approval("any", read_only=True)
    assert tool(server_label="at-home", server_url="http://127.0.0.1:3000/mcp", require_approval="never").free == (
        EVERY,
    )
    assert tool(server_label="files", headers={"X": "y"}) == OWN


def test_a_request_can_only_be_stricter() -> None:
    """Fewer tools, and more that need a yes, than the file says."""
    narrow = tool(server_label="files", allowed_tools=["read"], require_approval="always")
    assert narrow.needs_approval("read", read_only=True)
    assert not narrow.allows("drop", read_only=False)
    some = tool(server_label="files", require_approval={"never": ["read"]})
    assert (some.needs_approval("read", read_only=True), some.needs_approval("drop", read_only=False)) == (False, True)
    assert tool(server_label="shy", require_approval="never").needs_approval("read", read_only=True)


@each(
    ("fields", "param"),
    [
        ({}, "server_label"),
        ({"server_label": "a\nb", "server_url": URL}, "server_label"),
        ({"server_label": "unknown"}, "server_label"),
        ({"server_label": "files", "server_url": URL}, "server_url"),
        ({"server_label": "x", "server_url": "http://[::1"}, "server_url"),
        ({"server_label": "x", "server_url": "http://\N{ACCOUNT OF}:1/"}, "server_url"),
        ({"server_label": "x", "server_url": "http://169.254.169.254/"}, "server_url"),
        ({"server_label": "x", "server_url": "http://docs.example/mcp"}, "server_url"),
        ({"server_label": "x", "server_url": "https://docs.example:444/mcp"}, "server_url"),
        ({"server_label": "x", "server_url": "https://docs.example@evil.example/"}, "server_url"),
        ({"server_label": "x", "server_url": "https://evil.example\\@docs.example/"}, "server_url"),
        ({"server_label": "x", "server_url": "https://docs.example.evil.example/"}, "server_url"),
        ({"server_label": "x", "server_url": "file:///etc/passwd"}, "server_url"),
        ({"server_label": "x", "server_url": 3}, "server_url"),
        ({"server_label": "x", "server_url": URL, "headers": {"A": "b\nC: d"}}, "headers"),
        ({"server_label": "x", "server_url": URL, "headers": {str(n): "" for n in range(99)}}, "headers"),
        ({"server_label": "x", "server_url": URL, "authorization": "a\nb"}, "authorization"),
        ({"server_label": "x", "connector_id": "connector_gmail"}, "connector_id"),
        ({"server_label": "x", "server_url": URL, "require_approval": 3}, "require_approval"),
    ],
)
def test_what_a_request_may_not(fields: dict[str, Any], param: str) -> None:
    """Commands, hosts that are not listed however they are written, labels of the file's for another address."""
    with pytest.raises(BadRequest) as caught:
        tool(**fields)
    assert caught.value.error.param == f"tools[0].{param}"


def test_a_connection_is_the_same_whatever_is_allowed() -> None:
    """But not with other credentials."""
    assert tool(server_label="files", allowed_tools=["read"]).endpoint == OWN.endpoint
    one, other = (tool(server_label="docs", server_url=URL, authorization=each) for each in "ab")
    assert one.endpoint != other.endpoint
    assert Filter(None, True).fits("x", read_only=True)
