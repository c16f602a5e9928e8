"""Tests for the configuration of MCP servers, their allowed tools, and the calls that need approval."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.each import each
from toolsim.core.errors import BadRequest
from toolsim.mcp.server_config import EVERY, read_file, read_tool
from toolsim.mcp.servers import Filter, Server

URL = "https://docs.example/mcp"


def read(servers: Any, **environment: str) -> tuple[Server, ...]:
    return read_file(json.dumps({"mcpServers": servers}), environment)


def test_shared_file_format_is_read() -> None:
    """MCP servers are read from the JSON format that many MCP clients use (``mcpServers``). Variables are replaced with
    their values, and secrets do not appear in the repr.
    """
    local, remote, old = read(
        {
            "files": {"command": "npx", "args": ["-y", "x"], "env": {"KEY": "${K}"}, "cwd": "/srv", "autoApprove": []},
            "docs": {"url": URL, "headers": {"Authorization": "Bearer ${env:TOKEN}"}},
            "old": {"type": "sse", "url": "http://127.0.0.1:3000/sse"},
            "off": {"command": "x", "disabled": True},
        },
        K="k3y",
        TOKEN="t0ken",
    )
    assert local == Server("files", ("npx", "-y", "x"), (("KEY", "k3y"),), "/srv")
    assert remote == Server("docs", url=URL, headers=(("Authorization", "Bearer t0ken"),), kind="http")
    assert old.kind == "sse"
    assert "t0ken" not in repr((local, remote))
    assert "k3y" not in repr((local, remote))
    assert (local.secrets, remote.secrets) == (("k3y",), ("Bearer t0ken",))
    assert read_file(json.dumps({"servers": {"a": {"command": "b"}}}), {}) == (Server("a", ("b",)),)


@each(
    ("servers", "words"),
    [
        (3, "mcpServers"),
        ({"a b": {"command": "x"}}, "a b"),
        ({"a": 3}, "an object"),
        ({"a": {}}, "a.command"),
        ({"a": {"command": 3}}, "a.command"),
        ({"a": {"command": "x", "args": [3]}}, "array of strings"),
        ({"a": {"command": "x", "env": {"A": ["s3cret"]}}}, "a.env"),
        ({"a": {"command": "x", "timeout": 0}}, "a.timeout"),
        ({"a": {"url": "http://x/mcp", "timeout": "5"}}, "a.timeout"),
        ({"a": {"command": "x", "timeout": True}}, "a.timeout"),
        ({"a": {"command": "x", "env": {"A": "${NONE}"}}}, "NONE"),
        ({"a": {"url": "ftp://x/"}}, "a.url"),
        ({"a": {"url": "http://x:99999/"}}, "a.url"),
        ({"a": {"url": URL, "headers": {"A": "x\r\nB: s3cret"}}}, "a.headers"),
        ({"a": {"command": "x", "require_approval": "sometimes"}}, "require_approval"),
        ({"a": {"command": "x", "require_approval": {"always": {"read_only": False}}}}, "always"),
        ({"a": {"command": "x", "allowed_tools": 3}}, "allowed_tools"),
    ],
)
def test_invalid_entry_is_reported_without_values(servers: Any, words: str) -> None:
    """The error for an invalid entry in the MCP server file names the server or the key, but not the value of a
    variable or header.
    """
    with pytest.raises(ValueError, match=words) as refused:
        read(servers)
    assert "s3cret" not in str(refused.value)
    with pytest.raises(ValueError, match="JSON object"):
        read_file("[]", {})


@pytest.mark.parametrize(
    ("rule", "free"),
    [
        (None, ()),
        ("always", ()),
        ("never", ("read", "write", "drop")),
        ({"never": ["read"]}, ("read",)),
        ({"never": {"tool_names": ["read", "drop"]}, "always": ["drop"]}, ("read",)),
        ({"never": {"read_only": True}}, ("read",)),
        ({"always": ["drop"]}, ()),
        ({}, ()),
    ],
)
def test_approval_is_required_by_default(rule: Any, free: tuple[str, ...]) -> None:
    """A tool requires approval unless ``require_approval`` exempts it. If filters contradict each other, approval is
    required.
    """
    [server] = read({"a": {"command": "x"} | ({} if rule is None else {"require_approval": rule})})
    tools = {"read": True, "write": False, "drop": False}
    assert tuple(name for name, reads in tools.items() if not server.needs_approval(name, read_only=reads)) == free


def test_allowed_tools() -> None:
    """A server's tools can be allowed by name or by their read-only annotation."""
    [named] = read({"a": {"command": "x", "allowed_tools": ["read"]}})
    [reading] = read({"a": {"command": "x", "allowed_tools": {"read_only": True}}})
    for server in (named, reading):
        assert server.allows("read", read_only=True)
        assert not server.allows("drop", read_only=False)


OWN = Server("files", ("npx",), free=(EVERY,))
KNOWN = {"files": OWN, "shy": Server("shy", ("npx",))}


def tool(**fields: Any) -> Server:
    return read_tool({"type": "mcp", **fields}, "tools[0]", KNOWN, ("docs.example", "127.0.0.1:3000"))


def test_request_selects_a_server() -> None:
    """A request selects a configured server by its label. It can also specify the URL of a server on an allowed host,
    with credentials.
    """
    named = tool(server_label="docs", server_url=URL, headers={"X": "y", "authorization": "no"}, authorization="t")
    assert named.headers == (("X", "y"), ("Authorization", "Bearer t"))
    assert named.needs_approval("any", read_only=True)
    assert tool(server_label="at-home", server_url="http://127.0.0.1:3000/mcp", require_approval="never").free == (
        EVERY,
    )
    assert tool(server_label="files", headers={"X": "y"}) == OWN


def test_request_can_only_restrict_the_file() -> None:
    """Compared to the MCP configuration file, a request can allow fewer tools and require approval for more calls, but
    it cannot do the reverse.
    """
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
def test_request_cannot_declare_commands_or_hosts(fields: dict[str, Any], param: str) -> None:
    """A request cannot specify a command, a host that is not allowed (in any spelling of the URL), or a new URL for a
    configured label.
    """
    with pytest.raises(BadRequest) as caught:
        tool(**fields)
    assert caught.value.error.param == f"tools[0].{param}"


def test_allowed_tools_do_not_change_the_connection() -> None:
    """Server entries that differ only in their allowed tools have equal endpoints. Entries with different credentials
    have different endpoints.
    """
    assert tool(server_label="files", allowed_tools=["read"]).endpoint == OWN.endpoint
    one, other = (tool(server_label="docs", server_url=URL, authorization=each) for each in "ab")
    assert one.endpoint != other.endpoint
    assert Filter(None, True).fits("x", read_only=True)
