"""The tools that the proxy runs, in the Messages API: MCP servers, web search, and a search for deferred tools.

    declared   mcp_servers with mcp_toolset     web_search_20250305        tool_search_tool_(regex | bm25)_20251119
    call       mcp_tool_use                     server_tool_use            server_tool_use
    outcome    mcp_tool_result                  web_search_tool_result     tool_search_tool_result

1. A call and its outcome are blocks of the same message. Each block is written once it is complete.
2. The client echoes the blocks. In a history, they are read as ordinary calls and outputs (``to_chat.py``), with the
   same text that the model saw in the round after the call.
3. Clients show the title and address of each page that was found. The text of the page is in ``encrypted_content``,
   which clients only echo. toolsim encodes this text in base64.
4. The API has no approvals. Calls to a server that the request itself names do not need approval. For the operator's
   servers, the operator's approval rules still apply.
"""

from __future__ import annotations

import binascii
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, override

from toolsim.core.conversation import Call, Called, CallOutput, Raw, Text
from toolsim.core.errors import BadRequest
from toolsim.core.events import ClientEvent, PassThrough
from toolsim.core.plan import Tool
from toolsim.wire.hosted_items import WEB_SEARCH, HostedItems, ServedCall, without_searches
from toolsim.wire.json_codec import dump
from toolsim.wire.json_fields import array, expect, loaded, mapping, mappings, optional, required, string
from toolsim.wire.mcp_items import error_text, shown_name
from toolsim.wire.web_search import SearchResult, citations, results_text

CALLS = ("server_tool_use", "mcp_tool_use")
BLOCKS = frozenset({*CALLS, "mcp_tool_result", "web_search_tool_result", "tool_search_tool_result"})
"""Types of blocks that contain hosted calls or their outcomes."""
TOOLSET = "mcp_toolset"

_MARK = "toolsim:"
_MAX_CITED = 150
"""Maximum length, in characters, of a quotation from a page, as in Anthropic's citations."""
_ERROR = "Error: "
NO_TOOL = "No tool was found."
_CODES = frozenset({"invalid_tool_input", "unavailable", "max_uses_exceeded", "too_many_requests", "query_too_long"})


@dataclass(frozen=True, slots=True)
class ServedBlocks:
    """A hosted call as blocks of the Messages API. ``label`` is the label of the MCP server, or "" for a search."""

    id: str
    name: str
    arguments: str
    label: str = ""
    kind: Literal["mcp", "web_search", "tool_search_tool"] = "mcp"

    def begin(self) -> list[ClientEvent]:
        """Return the events that announce the call."""
        call = {"id": self.id, "name": self.name, "input": loaded(self.arguments) or {}}
        if self.kind == "mcp":
            return [PassThrough({"type": "mcp_tool_use", **call, "server_name": self.label})]
        return [PassThrough({"type": "server_tool_use", **call})]

    def end(
        self, output: str | None, error: Mapping[str, Any] | None, found: Sequence[Mapping[str, Any]] = ()
    ) -> list[ClientEvent]:
        """Return the events that report the outcome of the call."""
        content: Any
        if self.kind == "mcp":
            text = output if output is not None else error_text(error).removeprefix(_ERROR)
            content = [{"type": "text", "text": text}]
            more = {"is_error": output is None}
        else:
            more = {}
            code = string(mapping(error).get("code"))
            if error is not None:
                kind = f"{self.kind}_tool_result_error" if self.kind == "web_search" else f"{self.kind}_result_error"
                content = {"type": kind, "error_code": code if code in _CODES else "unavailable"}
            elif self.kind == "web_search":
                content = [_written(each) for each in found]
            else:
                content = {"type": "tool_search_tool_search_result", "tool_references": [*found]}
        kind = "tool_search_tool_result" if self.kind == "tool_search_tool" else f"{self.kind}_tool_result"
        return [PassThrough({"type": kind, "tool_use_id": self.id, "content": content, **more})]


class MessagesHosted(HostedItems):
    """Represents hosted tools in the Messages API. Clients see only the calls to tools that they declared."""

    shows = "declared"

    @override
    def declared(self, body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        sets = {string(tool.get("mcp_server_name")): tool for tool in _toolsets(body)}
        for index, sent in enumerate(optional(body, "mcp_servers", list) or ()):
            path = f"mcp_servers[{index}]"
            server = expect(sent, dict, path)
            label = required(server, "name", str, path)
            old = mapping(server.get("tool_configuration"))
            toolset = sets.get(label, {"default_config": {"enabled": old.get("enabled") is not False}})
            declared: dict[str, Any] = {"server_label": label, "require_approval": "never"}
            declared |= {"server_url": server["url"]} if server.get("url") is not None else {}
            if token := optional(server, "authorization_token", str, path):
                declared["authorization"] = token
            allowed = _allowed(toolset, old.get("allowed_tools"))
            yield path, declared | ({} if allowed is None else {"allowed_tools": allowed}) | _deferred(toolset)
        known = {string(mapping(server).get("name")) for server in array(body.get("mcp_servers"))}
        for label in sets.keys() - known:
            message = f"'{TOOLSET}' names the MCP server '{label[:64]}', which is not in 'mcp_servers'."
            raise BadRequest(message, "tools", "invalid_value")

    @override
    def mcp_call(self, label: str, name: str, arguments: str, request: str | None = None) -> ServedCall:
        return ServedBlocks(f"mcptoolu_{secrets.token_hex(12)}", name, arguments, label)

    @override
    def web_search(self, arguments: str) -> ServedCall:
        return ServedBlocks(f"srvtoolu_{secrets.token_hex(12)}", WEB_SEARCH, arguments, kind="web_search")

    @override
    def tool_search(self, name: str, arguments: str) -> ServedCall:
        return ServedBlocks(f"srvtoolu_{secrets.token_hex(12)}", name, arguments, kind="tool_search_tool")

    @override
    def found_tools(self, tools: Sequence[Tool], body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [{"type": "tool_reference", "tool_name": tool.wire_name} for tool in tools]

    @override
    def searched(self, call: ServedCall, found: Sequence[Mapping[str, Any]], text: str) -> Called:
        parts = tuple(Raw("messages", each) for each in found) or (Text(text),)
        return Call(call.id, call.name, call.arguments), CallOutput(call.id, parts)

    @override
    def as_functions(
        self,
        body: Mapping[str, Any],
        functions: Sequence[Mapping[str, Any]],
        model_name: Callable[[str, str], str],
        is_ours: Callable[[str], bool],
        decided: Mapping[str, Called],
    ) -> dict[str, Any]:
        def is_served(label: object) -> bool:
            return is_ours(string(label))

        tools = [
            tool
            for tool in array(body.get("tools"))
            if mapping(tool).get("type") != TOOLSET or not is_served(mapping(tool).get("mcp_server_name"))
        ]
        servers = [each for each in array(body.get("mcp_servers")) if not is_served(mapping(each).get("name"))]
        changed = {key: value for key, value in body.items() if key != "mcp_servers"}
        changed |= {"mcp_servers": servers} if servers else {}
        own = [_in_own_shape(function) for function in functions]
        return without_searches({**changed, "tools": [*tools, *own]}, own)

    @override
    def choice(self, value: Any, names: Callable[[str], Mapping[str, str]], searches: Mapping[str, str]) -> Any:
        # The tool choice remains as sent, because it contains the name that the model uses, no matter who runs the
        # tool.
        return value


def _toolsets(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [tool for tool in mappings(body.get("tools")) if tool.get("type") == TOOLSET]


def _in_own_shape(function: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a function from another API's shape to a Messages API tool, so that all tools have the same shape."""
    kept = {key: value for key, value in function.items() if key not in ("type", "parameters", "strict")}
    return {**kept, "input_schema": function["parameters"]}


def _allowed(toolset: Mapping[str, Any], names: object) -> Any:
    """Return the allowed tools of a server in the format of the Responses API, or None if all tools are allowed."""
    configs = mapping(toolset.get("configs"))
    is_on = mapping(toolset.get("default_config")).get("enabled") is not False
    of_set = {name: mapping(config).get("enabled", is_on) is not False for name, config in configs.items()}
    if not is_on:
        return [name for name, is_enabled in of_set.items() if is_enabled]
    if isinstance(names, list):
        return [name for name in names if isinstance(name, str) and of_set.get(name, True)]
    off = [name for name, is_enabled in of_set.items() if not is_enabled]
    return {"excluded_tool_names": off} if off else None


def _deferred(toolset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that specify which tools of an MCP server are deferred, or {} if no tool is deferred."""
    is_deferred = mapping(toolset.get("default_config")).get("defer_loading") is True
    configs = {
        name: mapping(config).get("defer_loading") is True
        for name, config in mapping(toolset.get("configs")).items()
        if "defer_loading" in mapping(config)
    }
    return {"defer_loading": is_deferred, "deferred": configs} if is_deferred or configs else {}


def _written(found: Mapping[str, Any]) -> dict[str, Any]:
    text = dump([string(found.get("text")), string(found.get("age"))]).encode("utf-8", "surrogatepass")
    return {
        "type": "web_search_result",
        "url": string(found.get("url")),
        "title": string(found.get("title")),
        "encrypted_content": f"{_MARK}{b64encode(text).decode()}",
        "page_age": string(found.get("age")) or None,
    }


def _read(block: Mapping[str, Any]) -> SearchResult:
    """Return the page in an echoed search result (rule 3 in the module docstring). Text that Anthropic encrypted is
    dropped.
    """
    sealed = string(block.get("encrypted_content"))
    text, age = "", string(block.get("page_age"))
    if sealed.startswith(_MARK):
        try:
            bare = b64decode(sealed.removeprefix(_MARK), validate=True).decode("utf-8", "surrogatepass")
        except (binascii.Error, ValueError):
            bare = ""
        # The content is the JSON that ``_written`` produces: an array of two strings.
        parts = array((loaded(f'{{"parts":{bare}}}') or {}).get("parts"))
        text, age = string(parts[0]) if parts else "", string(parts[1]) if len(parts) > 1 else age
    return SearchResult(string(block.get("url")), string(block.get("title")), text, age)


def model_name_of(block: Mapping[str, Any], place: str) -> str:
    """Return the model's name for the tool in a call block. Raises BadRequest if the block has no name."""
    name = required(block, "name", str, place)
    if block.get("type") != "mcp_tool_use":
        return name
    return shown_name(string(block.get("server_name")), name)


def pages_of(block: Mapping[str, Any]) -> dict[str, SearchResult]:
    """Return the pages in the result block of a web search, keyed by address."""
    content = block.get("content") if block.get("type") == "web_search_tool_result" else None
    return {page.url: page for page in map(_read, mappings(content)) if page.url}


def citations_of(text: str, pages: Mapping[str, SearchResult]) -> list[dict[str, Any]]:
    """Return one citation for each of the ``pages`` whose address occurs in ``text``."""
    named = dict.fromkeys(note["url"] for note in citations(text, {url: page.title for url, page in pages.items()}))
    return [
        {
            "type": "web_search_result_location",
            "url": url,
            "title": pages[url].title,
            "cited_text": pages[url].text[:_MAX_CITED],
            "encrypted_index": _MARK,
        }
        for url in named
    ]


def is_search(block: Mapping[str, Any]) -> bool:
    """Return whether a ``server_tool_use`` is a search. toolsim cannot read the results of other server tools."""
    return string(block.get("name")).startswith((WEB_SEARCH, "tool_search"))


def as_tool_result(block: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an outcome block to a ``tool_result`` (rule 2 in the module docstring)."""
    fields = {key: value for key, value in block.items() if key not in ("content", "is_error")}
    return {**fields, "type": "tool_result", "content": _content(block)}


def _content(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = block.get("content")
    kind = string(block.get("type"))
    code = string(mapping(content).get("error_code"))
    if code:
        return [_text(f"{_ERROR}the search failed ({code}).")]
    if kind == "tool_search_tool_result":
        found = mappings(mapping(content).get("tool_references"))
        return [dict(each) for each in found] or [_text(NO_TOOL)]
    if kind == "web_search_tool_result":
        return [_text(results_text(map(_read, mappings(content))))]
    parts = [string(part.get("text")) for part in mappings(content)]
    text = content if isinstance(content, str) else "\n".join(parts)
    return [_text(f"{_ERROR}{text}" if block.get("is_error") is True else text)]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
