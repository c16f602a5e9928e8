"""The tools that the proxy runs, in the Responses API: MCP items, web search, and a search for deferred tools.

    web search           := item.added in_progress searching completed item.done
    search for tools     := item.added item.done  item.added item.done        tool_search_call, tool_search_output

The ``results`` of a ``web_search_call`` contain the pages that the search found, as if the request had ``include:
["web_search_call.results"]``, because the model also needs the pages in the next turn. Codex sends back only the query.
In this case, the stored results of the latest search for the query are used.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, override

from toolsim.core.conversation import Call, Called, CallOutput, Raw, Text
from toolsim.core.events import ClientEvent, HostedEnded, HostedProgress, HostedStarted, PassThrough
from toolsim.core.plan import Tool
from toolsim.wire import mcp_items
from toolsim.wire.hosted_items import WEB_SEARCH, HostedItems, ServedCall
from toolsim.wire.json_codec import dump
from toolsim.wire.json_fields import array, loaded, mapping, mappings, string
from toolsim.wire.web_search import SearchResult, query_of, results_text


@dataclass(frozen=True, slots=True)
class WebSearchCall:
    """A web search that the proxy runs."""

    id: str
    arguments: str
    label: str = ""
    name: str = WEB_SEARCH

    def begin(self) -> list[ClientEvent]:
        """Return the events that announce the search."""
        return [
            HostedStarted(self.id, self._item("in_progress")),
            HostedProgress(self.id, "response.web_search_call.in_progress"),
            HostedProgress(self.id, "response.web_search_call.searching"),
        ]

    def end(
        self, output: str | None, error: Mapping[str, Any] | None, found: Sequence[Mapping[str, Any]] = ()
    ) -> list[ClientEvent]:
        """Return the events for the outcome of the search."""
        item = self._item("completed" if error is None else "failed")
        if error is None:
            item["action"]["sources"] = [{"type": "url", "url": each["url"]} for each in found if each["url"]]
            item["results"] = [*found]
        else:
            item["error"] = {**error}
        return [HostedProgress(self.id, "response.web_search_call.completed"), HostedEnded(self.id, item)]

    def _item(self, status: str) -> dict[str, Any]:
        query = query_of(loaded(self.arguments) or {})
        action = {"type": "search", "query": query, "queries": [query]}
        return {"id": self.id, "type": "web_search_call", "status": status, "action": action}


@dataclass(frozen=True, slots=True)
class ToolSearchCall:
    """A search for deferred tools that the proxy runs."""

    id: str
    arguments: str
    label: str = ""
    name: str = "tool_search"

    def begin(self) -> list[ClientEvent]:
        """Return the events that announce the search."""
        return [HostedStarted(self.id, self._item("in_progress"))]

    def end(
        self, output: str | None, error: Mapping[str, Any] | None, found: Sequence[Mapping[str, Any]] = ()
    ) -> list[ClientEvent]:
        """Return the events for the outcome of the search."""
        name = f"tso_{secrets.token_hex(16)}"
        item = {"id": name, "type": "tool_search_output", "call_id": None, "execution": "server"}
        done = {**item, "status": "completed" if error is None else "incomplete", "tools": [*found]}
        return [HostedEnded(self.id, self._item("completed")), PassThrough(done)]

    def _item(self, status: str) -> dict[str, Any]:
        item = {"id": self.id, "type": "tool_search_call", "call_id": None, "execution": "server"}
        return {**item, "status": status, "arguments": loaded(self.arguments) or {}}


class ResponsesHosted(HostedItems):
    """Represents hosted tools in the Responses API. Clients see all calls and can approve them."""

    shows = "all"
    asks_approval = True

    @override
    def web_search(self, arguments: str) -> ServedCall:
        return WebSearchCall(f"ws_{secrets.token_hex(16)}", arguments)

    @override
    def tool_search(self, name: str, arguments: str) -> ServedCall:
        return ToolSearchCall(f"tsc_{secrets.token_hex(16)}", arguments)

    @override
    def own_names(self, body: Mapping[str, Any]) -> set[str]:
        # Tools that the proxy's own search has found do not count as the client's own tools, because they might belong
        # to MCP servers.
        kept = [None if _is_found_here(item) else item for item in array(body.get("input"))]
        return super().own_names({**body, "input": kept})

    @override
    def search_function(self, declared: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().search_function({}), "type": "tool_search", "execution": "client"}

    @override
    def found_tools(self, tools: Sequence[Tool], body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        wanted = {(tool.namespace, tool.wire_name) for tool in tools}
        found: list[Mapping[str, Any]] = []
        for declared in mappings(body.get("tools")):
            if declared.get("type") == "namespace":
                space = string(declared.get("name"))
                inner = [each for each in mappings(declared.get("tools")) if (space, each.get("name")) in wanted]
                found += [{**declared, "tools": inner}] if inner else []
            elif (None, _name_of(declared)) in wanted:
                found.append(declared)
        return found

    @override
    def searched(self, call: ServedCall, found: Sequence[Mapping[str, Any]], text: str) -> Called:
        item = {"type": "tool_search_output", "tools": [*found]}
        output = CallOutput(call.id, (Raw("responses", item),))
        return Call(call.id, call.name, call.arguments, kind="tool_search"), output

    @override
    def with_results(
        self, body: Mapping[str, Any], found: Callable[[str], Sequence[Mapping[str, Any]] | None]
    ) -> Mapping[str, Any]:
        items = array(body.get("input"))
        return {**body, "input": [_with_results(item, found) for item in items]} if items else body

    @override
    def as_functions(
        self,
        body: Mapping[str, Any],
        functions: Sequence[Mapping[str, Any]],
        model_name: Callable[[str, str], str],
        is_ours: Callable[[str], bool],
        decided: Mapping[str, Called],
    ) -> dict[str, Any]:
        changed = super().as_functions(body, functions, model_name, is_ours, decided)
        served = {string(each.get("searches")) for each in functions}
        if isinstance(items := changed.get("input"), list) and served:
            changed["input"] = [new for item in _numbered(items) for new in _searched(item, served)]
        return changed


def _with_results(item: Any, found: Callable[[str], Sequence[Mapping[str, Any]] | None]) -> Any:
    fields = mapping(item)
    if fields.get("type") != "web_search_call" or "results" in fields or fields.get("error"):
        return item
    results = found(string(mapping(fields.get("action")).get("query")))
    return item if results is None else {**fields, "results": [*results]}


def _name_of(declared: Mapping[str, Any]) -> str:
    nested = mapping(declared.get(string(declared.get("type"))))
    return string(nested.get("name")) or string(declared.get("name"))


def _is_found_here(item: object) -> bool:
    fields = mapping(item)
    return fields.get("type") == "tool_search_output" and fields.get("execution") != "client"


def _numbered(items: list[Any]) -> Iterator[Any]:
    """Yield the items of a history. If a server ran a tool search, the search and its output have no ``call_id``, so
    the same new ``call_id`` is added to both items.
    """
    last = ""
    for item in items:
        kind = mapping(item).get("type")
        if kind == "tool_search_call" and item.get("execution") != "client":
            last = string(item.get("id")) or "tool_search"
            yield {**item, "call_id": last}
        elif _is_found_here(item):
            yield {**item, "call_id": last or "tool_search"}
        else:
            yield item


def _searched(item: Any, served: set[str]) -> list[Any]:
    kind = mapping(item).get("type")
    if kind in ("tool_search_call", "tool_search_output") and "tool_search" in served:
        return [{**item, "execution": "client"}]
    if kind != "web_search_call" or "web_search" not in served:
        return [item]
    query = string(mapping(item.get("action")).get("query"))
    call_id = string(item.get("id")) or "web_search"
    called = Call(call_id, WEB_SEARCH, dump({"query": query})), CallOutput(call_id, (Text(search_output(item)),))
    return mcp_items.call_items(*called)


def search_output(item: Mapping[str, Any]) -> str:
    """Return the results of a ``web_search_call`` as the model saw them."""
    if item.get("error"):
        return mcp_items.error_text(item["error"])
    results = item.get("results")
    if not isinstance(results, list):
        return "The results of this search are not kept: search again if they are needed."
    texts = [[string(each.get(key)) for key in ("url", "title", "text", "age")] for each in mappings(array(results))]
    return results_text(SearchResult(*each) for each in texts)
