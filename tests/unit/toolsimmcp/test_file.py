"""The operator's file: which servers there are, which of their tools are allowed, and which calls need a yes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.each import each
from toolsimlib.hosted.servers import Server
from toolsimmcp.file import read_file

URL = "https://docs.example/mcp"


def read(servers: Any, **environment: str) -> tuple[Server, ...]:
    return read_file(json.dumps({"mcpServers": servers}), environment)


def test_the_form_that_clients_share() -> None:
    """Commands with their arguments, environment and folder; URLs with headers; variables stand for their values."""
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
        ({"a": {"command": "x", "env": {"A": 3}}}, "a.env"),
        ({"a": {"command": "x", "timeout": 0}}, "a.timeout"),
        ({"a": {"url": "http://x/mcp", "timeout": "5"}}, "a.timeout"),
        ({"a": {"command": "x", "timeout": True}}, "a.timeout"),
        ({"a": {"command": "x", "env": {"A": "${NONE}"}}}, "NONE"),
        ({"a": {"url": "ftp://x/"}}, "a.url"),
        ({"a": {"url": "http://x:99999/"}}, "a.url"),
        ({"a": {"url": URL, "headers": {"A": "x\r\nB: y"}}}, "a.headers"),
        ({"a": {"command": "x", "require_approval": "sometimes"}}, "require_approval"),
        ({"a": {"command": "x", "require_approval": {"always": {"read_only": False}}}}, "always"),
        ({"a": {"command": "x", "allowed_tools": 3}}, "allowed_tools"),
    ],
)
def test_what_is_wrong_is_said(servers: Any, words: str) -> None:
    """With the server's name and the key, and without any value of the file's."""
    with pytest.raises(ValueError, match=words):
        read(servers)
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
def test_what_is_not_said_needs_a_yes(rule: Any, free: tuple[str, ...]) -> None:
    """A tool is free where a filter says so and no other says the opposite."""
    [server] = read({"a": {"command": "x"} | ({} if rule is None else {"require_approval": rule})})
    tools = {"read": True, "write": False, "drop": False}
    assert tuple(name for name, reads in tools.items() if not server.needs_approval(name, read_only=reads)) == free


def test_allowed_tools() -> None:
    """By name, or by what a tool says of itself."""
    [named] = read({"a": {"command": "x", "allowed_tools": ["read"]}})
    [reading] = read({"a": {"command": "x", "allowed_tools": {"read_only": True}}})
    for server in (named, reading):
        assert server.allows("read", read_only=True)
        assert not server.allows("drop", read_only=False)
