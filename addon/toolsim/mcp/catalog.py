"""Declares the tools of MCP servers as functions for the model, and finds the tool for each of the model's calls.

1. A tool is shown as ``label__tool``, in characters allowed in function names. If the name is taken by one of the
   client's functions or by another server's tool, a number is appended, so that no tool can impersonate another.
2. A tool's description is text for the model, and is truncated. A tool's schema that does not describe an object is
   replaced with a schema that accepts any object. The number and total size of a server's tools are bounded.
3. Tools that the operator or the client has masked are not in the catalog, and tools that are not in the catalog are
   never called.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolsim.mcp.servers import Server
from toolsim.wire.json_codec import dump
from toolsim.wire.mcp_items import shown_name

MAX_TOOLS = 256
"""Maximum number of tools per server. It is more than any model can handle."""
MAX_TOOLS_BYTES = 512 * 1024
"""Maximum total size of the descriptions and schemas of one server's tools, in bytes of JSON."""
_MAX_DESCRIPTION = 4_000
_MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """A tool as its MCP server lists it. ``is_read_only`` is true if the tool's annotations declare it read-only."""

    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    is_read_only: bool = False

    def listed(self) -> dict[str, Any]:
        """Return the tool in the format of ``mcp_list_tools`` items."""
        notes = {"read_only": self.is_read_only}
        return {"name": self.name, "description": self.description, "input_schema": self.schema, "annotations": notes}


def remote_tool(name: str, description: str | None, schema: Any, *, is_read_only: bool) -> RemoteTool:
    """Return a tool with a sanitized description and schema."""
    usable = schema if isinstance(schema, dict) and schema.get("type") == "object" else {"type": "object"}
    text = "".join(char for char in description or "" if char.isprintable() or char == "\n")
    return RemoteTool(name, text[:_MAX_DESCRIPTION], usable, is_read_only)


@dataclass(frozen=True, slots=True)
class HostedTool:
    """An MCP tool that the model can call, with its server. ``needs_approval`` is true if its calls need approval."""

    server: Server
    tool: RemoteTool
    needs_approval: bool


class McpCatalog:
    """The MCP tools that the model can call in one answer, by the names under which the model sees them."""

    def __init__(self, taken: Collection[str], allow: Collection[str] = (), deny: Collection[str] = ()) -> None:
        self._taken = set(taken)
        self._allow, self._deny = allow, deny
        self._tools: dict[str, HostedTool] = {}
        # Maps a server's label and a tool's own name to the name under which the model sees the tool.
        self._names: dict[tuple[str, str], str] = {}
        self._withheld: set[str] = set()

    def add(self, server: Server, tools: Sequence[RemoteTool]) -> list[RemoteTool]:
        """Add a server's tools, except for masked tools and tools beyond the limits. Return the added tools."""
        offered: list[RemoteTool] = []
        size = 0
        for tool in tools:
            name = shown_name(server.label, tool.name)
            size += len(dump(tool.schema)) + len(tool.description)
            if len(offered) >= MAX_TOOLS or size > MAX_TOOLS_BYTES:
                break
            if tool.name == server.web_search:
                # This tool runs web searches that requests declare as ``web_search``, so it is not also offered under
                # its own name.
                continue
            if not self.permits(server.label, tool.name) or not server.allows(tool.name, read_only=tool.is_read_only):
                self._withheld.add(name)
                continue
            needs_approval = server.needs_approval(tool.name, read_only=tool.is_read_only)
            name = self._free(name)
            self._tools[name] = HostedTool(server, tool, needs_approval)
            self._names[server.label, tool.name] = name
            offered.append(tool)
        return offered

    def __bool__(self) -> bool:
        return bool(self._tools)

    def find(self, name: str) -> HostedTool | None:
        """Return the tool that the model sees as ``name``, or None if there is no such tool."""
        return self._tools.get(name)

    @property
    def tools(self) -> Mapping[str, HostedTool]:
        """The offered tools, by the names under which the model sees them."""
        return self._tools

    def free_name(self, name: str) -> str:
        """Reserve and return ``name`` for a tool outside the catalog, with a number appended if it is already used."""
        self._taken.add(free := self._free(name))
        return free

    def names(self, label: str) -> dict[str, str]:
        """Return a mapping from the tool names of one server to the names under which the model sees the tools."""
        return {tool: name for (whose, tool), name in self._names.items() if whose == label}

    def name(self, label: str, tool: str) -> str:
        """Return the name under which the model sees a tool.

        For a tool that is not offered, return an unused name.
        """
        return self._names.get((label, tool)) or self._free(shown_name(label, tool))

    @property
    def shown(self) -> frozenset[str]:
        """The names under which the model sees the offered tools."""
        return frozenset(self._tools)

    @property
    def masked(self) -> frozenset[str]:
        """The names under which the model would see the masked tools if they were offered."""
        return frozenset(self._withheld - self._taken - self._tools.keys())

    def functions(self) -> list[dict[str, Any]]:
        """Return the declarations of the tools in a flat format that all APIs accept."""
        return [
            {
                "type": "function",
                "name": name,
                "description": found.tool.description,
                "parameters": found.tool.schema,
                "strict": False,
                **({"defer_loading": True} if found.server.is_deferred(found.tool.name) else {}),
            }
            for name, found in self._tools.items()
        ]

    def permits(self, label: str, tool: str) -> bool:
        """Return whether the operator's lists allow a tool.

        The lists can contain the tool's own name, or the name under which the model sees it.
        """
        names = {shown_name(label, tool), tool}
        return (not self._allow or bool(names & set(self._allow))) and not names & set(self._deny)

    def _free(self, name: str) -> str:
        """Return ``name``, with a number appended if the name is already used."""
        number, free = 1, name
        while free in self._taken or free in self._tools:
            number += 1
            end = f"_{number}"
            free = name[: _MAX_NAME - len(end)] + end
        return free
