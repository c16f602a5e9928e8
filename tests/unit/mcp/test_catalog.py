"""Tests for offering tools on MCP servers to the model as functions."""

from __future__ import annotations

import re

from toolsim.mcp.catalog import MAX_TOOLS, MAX_TOOLS_BYTES, McpCatalog, RemoteTool, remote_tool, shown_name
from toolsim.mcp.servers import Filter, Server

FILES = Server("files", ("x",), allowed=(Filter(frozenset({"read", "write"})),), free=(Filter(frozenset({"read"})),))
READ, WRITE, DROP = (RemoteTool(name, schema={"type": "object"}) for name in ("read", "write", "drop"))


def test_tools_become_functions() -> None:
    """Each allowed MCP tool becomes a function whose name starts with the server's label. The MCP tool can be looked up
    by the function's name.
    """
    catalog = McpCatalog(())
    assert catalog.add(FILES, [READ, WRITE, DROP]) == [READ, WRITE]
    assert [each["name"] for each in catalog.functions()] == ["files__read", "files__write"]
    found = catalog.find("files__read")
    assert found is not None
    assert (found.tool, found.needs_approval) == (READ, False)
    assert catalog.find("files__drop") is None
    assert catalog.names("files") == {"read": "files__read", "write": "files__write"}
    assert catalog.names("other") == {}
    assert (catalog.name("files", "read"), catalog.name("files", "drop")) == ("files__read", "files__drop")


def test_tool_lists_match_names() -> None:
    """The allowlist and the denylist can contain the name of an MCP tool either with or without the server's label."""
    free = Server("files", ("x",), free=(Filter(),))
    for deny in ("drop", "files__drop"):
        assert McpCatalog((), deny={deny}).add(free, [READ, DROP]) == [READ]
    for allow in ("read", "files__read"):
        assert McpCatalog((), allow={allow}).add(free, [READ, DROP]) == [READ]


def test_tool_names_are_unique() -> None:
    """The functions for MCP tools have unique names, which differ from the names of the client's functions and contain
    only valid characters.
    """
    catalog = McpCatalog(["a__b__c"])
    for server in (Server("a"), Server("a__b")):
        catalog.add(server, [RemoteTool("b__c"), RemoteTool("c")])
    names = [each["name"] for each in catalog.functions()]
    assert names == ["a__b__c_2", "a__c", "a__b__b__c", "a__b__c_3"]
    odd = McpCatalog(())
    odd.add(Server("a.b"), [RemoteTool("x y\n" + "z" * 200), RemoteTool("x y\n" + "z" * 201)])
    names = [each["name"] for each in odd.functions()]
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    assert shown_name("a", "é") == "a___"


def test_server_descriptions_are_limited() -> None:
    """The tools of a server are limited in number and total size. Their descriptions are shortened, and control
    characters are removed.
    """
    assert len(McpCatalog(()).add(Server("a"), [RemoteTool(str(n)) for n in range(MAX_TOOLS + 9)])) == MAX_TOOLS
    large = RemoteTool("x", schema={"type": "object", "title": "y" * (MAX_TOOLS_BYTES // 2)})
    assert len(McpCatalog(()).add(Server("a"), [large, large, large])) == 1
    tool = remote_tool("x", "a\x1b[31m\u202e" + "b" * 9_000, ["no schema"], is_read_only=True)
    assert tool.schema == {"type": "object"}
    assert tool.description.startswith("a[31mb")
    assert len(tool.description) == 4_000
    assert tool.listed()["annotations"] == {"read_only": True}
