"""The searches that an answer can run between its rounds: web search by an MCP server, and search for deferred tools.

1. For the model, a search is a function. Its result is processed like the result of any other call
   (``hosted_calls.py``).
2. A web search calls the MCP tool that the operator has named in the configuration file. The limits of the request are
   enforced: pages of other domains are removed from the results, and searches beyond ``max_uses`` are refused.
3. The tools that a search has found are loaded, so the model sees their schemas starting with the next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from toolsim.core.conversation import Call, Called, CallOutput, Text
from toolsim.core.plan import Tool
from toolsim.mcp.outcome import LIMIT, REFUSED, UNREACHABLE, ToolOutcome
from toolsim.request.tool_search import find_tools
from toolsim.wire.hosted_items import HostedItems, ServedCall
from toolsim.wire.messages.hosted import NO_TOOL
from toolsim.wire.web_search import SearchLimits, query_of, read_results, results_text

_DESCRIPTION = "Search the web. Returns pages with their titles, addresses and texts; name the addresses that you use."
_SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_MAX_QUERY = 2_000
"""Maximum length of a query, in characters."""

CallServer = Callable[[Mapping[str, Any]], Awaitable[ToolOutcome]]
"""A function that calls the MCP server's search tool."""


class Search(Protocol):
    """A search that a request declares. ``function`` declares the search to the model, under ``name``."""

    name: str
    function: dict[str, Any]
    asks_server: bool
    """Whether the search calls an MCP server."""

    def item(self, arguments: str) -> ServedCall:
        """Return the item that shows a new search to the client."""

    async def run(self, call: ServedCall, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Run the search with the model's arguments."""

    def called(self, call: ServedCall, outcome: ToolOutcome) -> Called:
        """Return the search as a call with its output, as shown to the model."""


class WebSearch:
    """A web search. ``name`` must differ from the names of all tools."""

    asks_server = True

    def __init__(self, items: HostedItems, name: str, limits: SearchLimits, search: CallServer) -> None:
        self.name = name
        self.function = {"type": "function", "name": name, "description": _DESCRIPTION, "parameters": _SCHEMA}
        self._items = items
        self._limits = limits
        self._left = limits.uses
        self._search = search

    def item(self, arguments: str) -> ServedCall:
        """Return the item that shows a new web search to the client."""
        return self._items.web_search(arguments)

    async def run(self, call: ServedCall, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Search the web, and remove results that the request's limits do not allow."""
        query = query_of(arguments)
        if not query or len(query) > _MAX_QUERY:
            return _failed("query_too_long" if query else "invalid_tool_input", REFUSED)
        if self._left == 0:
            return _failed("max_uses_exceeded", LIMIT)
        self._left -= 1
        outcome = await self._search({"query": query})
        if outcome.output is None:
            return _failed("unavailable", outcome.code)
        found = [each for each in read_results(outcome.output) if self._limits.permits(each.url)]
        return ToolOutcome(results_text(found), found=tuple(asdict(each) for each in found))

    def called(self, call: ServedCall, outcome: ToolOutcome) -> Called:
        """Return the web search as a call with its output, as shown to the model."""
        return Call(call.id, self.name, call.arguments), CallOutput(call.id, (Text(outcome.shown),))


class ToolSearch:
    """A search among the deferred tools that the first round's request, ``body``, declares."""

    asks_server = False

    def __init__(
        self, items: HostedItems, function: dict[str, Any], tools: Sequence[Tool], body: Mapping[str, Any]
    ) -> None:
        self.name = function["name"]
        self.function = function
        self._items = items
        self._tools = tools
        self._body = body

    def item(self, arguments: str) -> ServedCall:
        """Return the item that shows a new tool search to the client."""
        return self._items.tool_search(self.name, arguments)

    async def run(self, call: ServedCall, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Search the deferred tools."""
        # The search runs in a thread, because searching thousands of tools takes a tenth of a second.
        found = await asyncio.to_thread(find_tools, self._tools, arguments)
        return ToolOutcome(NO_TOOL, found=tuple(self._items.found_tools(found, self._body)))

    def called(self, call: ServedCall, outcome: ToolOutcome) -> Called:
        """Return the tool search as a call with its output, as shown to the model."""
        return self._items.searched(call, outcome.found, outcome.shown)


def _failed(error: str, code: str = UNREACHABLE) -> ToolOutcome:
    """Return the outcome of a failed search. ``error`` is the error code of the Messages API."""
    return ToolOutcome(None, {"code": error, "message": f"the search failed ({error})."}, code)
