"""The representation of tools that the proxy runs, in each API: declarations, calls, and calls in a history.

The proxy, rather than a backend, can run three kinds of declared tools: tools of MCP servers, web search, and a search
for tools whose schemas are deferred. The rounds treat all kinds alike (``rounds/hosted_calls.py``): each tool is a
function for the model, and its call is a ``ServedCall``. The client's API determines the calls that the client sees.
Chat completions cannot represent these calls, so its clients see none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from toolsim.core.conversation import Call, Called, CallOutput, Text
from toolsim.core.events import ClientEvent
from toolsim.core.plan import Tool
from toolsim.wire import mcp_items
from toolsim.wire.json_fields import mapping, mappings, string
from toolsim.wire.tools import read_tools

Kind = Literal["", "web_search", "tool_search"]
"""Kind of search that a hosted tool runs; "" for any other tool."""
WEB_SEARCH = "web_search"
"""Name under which the model, and clients of the Messages API, see the web search tool."""

_BY_PATTERN = "tool_search_tool_regex"
SEARCHES = (_BY_PATTERN, "tool_search_tool_bm25", "tool_search")
"""Names of the tools that search for deferred tools."""
_DESCRIPTION = "Search for further tools; those that are found can be called from then on."
_PATTERN = {"type": "string", "description": "Regular expression; names, descriptions and parameters are searched"}
_QUERY = {"type": "string", "description": "Words; names, descriptions and parameters are searched"}


class ServedCall(Protocol):
    """A call that the proxy runs, in the form that the client sees."""

    @property
    def id(self) -> str:
        """The ID of the call."""

    @property
    def label(self) -> str:
        """The label of the MCP server that provides the tool, or "" if there is none."""

    @property
    def name(self) -> str:
        """The name of the tool on the MCP server."""

    @property
    def arguments(self) -> str:
        """The arguments of the call, as JSON text written by the model."""

    def begin(self) -> list[ClientEvent]:
        """Return the events that announce the call."""

    def end(
        self, output: str | None, error: Mapping[str, Any] | None, found: Sequence[Mapping[str, Any]] = ()
    ) -> list[ClientEvent]:
        """Return the events for the outcome of the call. ``found`` contains the results of a search."""


class HostedItems:
    """Represents hosted tools and their calls in an API. This base class is for an API that cannot represent hosted
    tools, such as chat completions.
    """

    shows: Literal["all", "declared", "none"] = "none"
    """The calls that the client sees. ``declared`` means only calls to tools that the client's request names."""
    asks_approval = False
    """Whether the client can be asked to approve a call."""

    def declared(self, body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the MCP servers that a request names, each as its path and an ``mcp`` tool of the Responses API."""
        return mcp_items.declared(body)

    def mcp_call(self, label: str, name: str, arguments: str, request: str | None = None) -> ServedCall:
        """Return a new call to an MCP server's tool. ``request`` is the ID of the approval request that led to the
        call.
        """
        return mcp_items.McpCall(mcp_items.new_call_id(), label, name, arguments, request)

    def web_search(self, arguments: str) -> ServedCall:
        """Return a new web search call."""
        return mcp_items.McpCall(mcp_items.new_call_id(), "", WEB_SEARCH, arguments)

    def tool_search(self, name: str, arguments: str) -> ServedCall:
        """Return a new call to the tool ``name``, which searches the deferred tools."""
        return mcp_items.McpCall(mcp_items.new_call_id(), "", name, arguments)

    def own_names(self, body: Mapping[str, Any]) -> set[str]:
        """Return the names under which the model sees the client's own tools."""
        return {tool.name for tool in read_tools(body)[0]}

    def search_function(self, declared: Mapping[str, Any]) -> dict[str, Any]:
        """Return the declaration of a function that represents ``declared``, a hosted search for deferred tools."""
        name = search_name(declared)
        key, schema = ("pattern", _PATTERN) if name == _BY_PATTERN else ("query", _QUERY)
        parameters = {"type": "object", "properties": {key: schema}, "required": [key]}
        return {"type": "function", "name": name, "description": _DESCRIPTION, "parameters": parameters}

    def found_tools(self, tools: Sequence[Tool], body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the result of a tool search: references to the tools that it found. ``body`` declares the tools."""
        return []

    def searched(self, call: ServedCall, found: Sequence[Mapping[str, Any]], text: str) -> Called:
        """Return a tool search as a call and its output. In the next round, they make the found tools available to the
        model.
        """
        return Call(call.id, call.name, call.arguments), CallOutput(call.id, (Text(text),))

    def as_functions(
        self,
        body: Mapping[str, Any],
        functions: Sequence[Mapping[str, Any]],
        model_name: Callable[[str, str], str],
        is_ours: Callable[[str], bool],
        decided: Mapping[str, Called],
    ) -> dict[str, Any]:
        """Return a request whose MCP tools and searches are replaced with ``functions``.

        See ``mcp_items.as_functions`` for the parameters.
        """
        return without_searches(mcp_items.as_functions(body, functions, model_name, is_ours, decided), functions)

    def with_results(
        self, body: Mapping[str, Any], found: Callable[[str], Sequence[Mapping[str, Any]] | None]
    ) -> Mapping[str, Any]:
        """Return a request in which earlier searches contain their results again. ``found`` returns the stored results
        for a query.
        """
        return body

    def choice(self, value: Any, names: Callable[[str], Mapping[str, str]], searches: Mapping[str, str]) -> Any:
        """Return ``value``, a ``tool_choice``, with functions in place of MCP tools and searches.

        ``names`` accepts a server's label, and returns a mapping from the server's tool names to function names.
        ``searches`` maps each type of search to the name of the function that represents it. Raises BadRequest if
        ``value`` names an MCP tool that is not offered.
        """
        if (kind := search_kind(mapping(value))) in searches:
            return {"type": "function", "name": searches[kind]}
        return mcp_items.choice_of_functions(value, names)


def search_kind(declared: Mapping[str, Any]) -> Kind:
    """Return the kind of search that a declared tool runs, or "" if it is not a search that the proxy can run."""
    kind, callers = string(declared.get("type")), declared.get("allowed_callers")
    if isinstance(callers, list) and "direct" not in callers:
        # The model cannot call this tool. Only a program that runs on the backend can.
        return ""
    if kind.startswith(WEB_SEARCH):
        return "web_search"
    if kind.startswith("tool_search") and declared.get("execution") != "client":
        return "tool_search"
    return ""


def search_name(declared: Mapping[str, Any]) -> str:
    """Return the name under which the model sees a search for deferred tools."""
    kind = string(declared.get("type"))
    return next(name for name in SEARCHES if kind.startswith(name) or name == SEARCHES[-1])


def search_for(search: str, tool: Tool) -> dict[str, str]:
    """Return arguments that make the search tool named ``search`` find ``tool``."""
    return {"pattern": f"^{re.escape(tool.name)}$"} if search == _BY_PATTERN else {"query": tool.name}


def search_tools(body: Mapping[str, Any]) -> Iterator[tuple[str, Kind, Mapping[str, Any]]]:
    """Yield the path, the kind and the declaration of each search that a request declares."""
    for index, declared in enumerate(body["tools"] if isinstance(body.get("tools"), list) else ()):
        if kind := search_kind(mapping(declared)):
            yield f"tools[{index}]", kind, declared


def without_searches(body: dict[str, Any], functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a request without the searches that ``functions`` replace."""
    served = {string(each.get("searches")) for each in functions}
    bare = [{key: value for key, value in each.items() if key != "searches"} for each in functions]
    tools = [tool for tool in body["tools"] if tool not in functions]
    kept = [tool for tool in tools if not isinstance(tool, dict) or search_kind(tool) not in served - {""}]
    return {**body, "tools": [*kept, *bare]}


def is_deferred(body: Mapping[str, Any]) -> bool:
    """Return whether a request declares tools whose schemas are deferred."""
    tools = mappings(body.get("tools"))
    inner = [each for tool in tools for each in mappings(tool.get("tools"))]
    default = [mapping(tool.get("default_config")) for tool in tools]
    configs = [mapping(each) for tool in tools for each in mapping(tool.get("configs")).values()]
    return any(each.get("defer_loading") is True for each in (*tools, *inner, *default, *configs))
