"""The rules that determine which requests can use MCP servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.test import tflow
from toolsim.mcp.catalog import RemoteTool
from toolsim.mcp.servers import Server
from toolsim.proxy import mcp_servers
from toolsim.proxy.cors import Origins
from toolsim.proxy.mcp_servers import Servers
from toolsim.proxy.options.settings import Mcp

MCP = Mcp((Server("files", ("x",)),))
ORIGINS = Origins(("app://obsidian.md",))


def asked(origin: str | None = None) -> HTTPFlow:
    flow = tflow.tflow()
    if origin is not None:
        flow.request.headers["origin"] = origin
    return flow


def test_mcp_is_off_by_default() -> None:
    """Without options, no request has access to MCP servers."""
    servers = Servers()
    assert servers.context(ORIGINS, asked(), "").pool is None


async def test_unlisted_web_page_has_no_access() -> None:
    """Requests from web pages whose origin is not listed have no access to MCP servers. Otherwise any page could run
    tools.
    """
    servers = Servers()
    servers.update(MCP)
    for origin, may in ((None, True), ("app://obsidian.md", True), ("https://evil.example", False), ("null", False)):
        assert (servers.context(ORIGINS, asked(origin), "").pool is not None) == may
    await servers.stop()


async def test_requests_that_use_mcp_are_recognized() -> None:
    """If the MCP configuration file lists servers, every request can use MCP. Otherwise, only requests whose body
    mentions MCP can.
    """
    servers = Servers()
    servers.update(MCP)
    mcp_context = servers.context(ORIGINS, asked(), "")
    assert mcp_context is not None
    assert mcp_context.is_asked(b"{}")
    servers.update(replace(MCP, servers=(), runs_clients=True))
    mcp_context = servers.context(ORIGINS, asked(), "")
    assert mcp_context is not None
    assert not mcp_context.is_asked(b'{"input":"hi"}')
    assert mcp_context.is_asked(b'{"tools":[{"type":"mcp"}]}')
    await servers.stop()


async def test_missing_search_tool_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """If the configured search tool does not exist, the log reports it and lists the server's tools."""

    class Pool:
        async def tools(self, server: Server) -> list[RemoteTool]:
            return [RemoteTool("find"), RemoteTool("other")]

    for name, lines in (("find", 0), ("fnd", 1)):
        caplog.clear()
        await mcp_servers._first_asked(cast(Any, Pool()), Server("web", ("x",), web_search=name))
        assert len(caplog.records) == lines
    assert "does not offer the tool 'fnd'" in caplog.text
    assert "find, other" in caplog.text


async def test_changed_server_options_stop_the_servers() -> None:
    """The running MCP servers are stopped only if the list of servers changes, and not if other MCP options change."""
    servers = Servers()
    servers.update(MCP)
    first = servers.context(ORIGINS, asked(), "")
    servers.update(replace(MCP, hosts=("docs.example",)))
    second = servers.context(ORIGINS, asked(), "")
    servers.update(Mcp((Server("files", ("x",), timeout=3.0),)))
    third = servers.context(ORIGINS, asked(), "")
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.pool is second.pool
    assert second.hosts == ("docs.example",)
    assert second.desk is None
    servers.update(replace(MCP, approval="operator"))
    fourth = servers.context(ORIGINS, asked(), "")
    assert fourth is not None
    assert fourth.desk is servers.approve.desk
    assert third.pool is not first.pool
    await servers.stop()
