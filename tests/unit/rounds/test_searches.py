"""Tests for MCP calls, web searches and tool searches that toolsim runs during an answer. The client receives them as
items or content blocks.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anthropic
import httpx2
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from support.each import each
from support.rounds import Script, run
from toolsim.core.errors import BadRequest
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.mcp.approvals import Approvals
from toolsim.mcp.catalog import RemoteTool
from toolsim.mcp.outcome import TOO_LARGE, ToolOutcome, failed
from toolsim.mcp.runtime import Caller
from toolsim.mcp.server_config import EVERY, NONE
from toolsim.mcp.servers import Server
from toolsim.request.rewrite import rewrite_request
from toolsim.rounds.hidden_calls import HiddenCalls
from toolsim.rounds.hosted_calls import HostedCalls, McpContext
from toolsim.rounds.round_planner import RoundLimits
from toolsim.rounds.runner import RunnerJob
from toolsim.wire.apis import APIS
from toolsim.wire.mcp_items import after_calls

SEARCHER = Server("web", ("x",), web_search="search")
FOUND = [
    {"title": "Herons", "url": "https://birds.example/heron", "content": "Grey ones are common.", "date": "May 2"},
    {"title": "Ads", "link": "https://ads.example.net/x", "snippet": "Buy one."},
]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SHOWN: tuple[ApiName, ...] = ("responses", "messages")
BACKENDS: tuple[ApiName, ...] = ("chat", "responses", "messages")


def block(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Pool:
    """Simulated MCP servers. Each server has a search tool and a tool that adds numbers."""

    def __init__(self, output: str | None = None) -> None:
        self.output = json.dumps({"results": FOUND}) if output is None else output
        self.calls: list[tuple[str, str, Mapping[str, Any]]] = []

    async def tools(self, server: Server, who: Caller) -> list[RemoteTool]:
        words = {"type": "object", "properties": {"n": {"type": "integer"}, "q": {"type": "string"}}}
        return [RemoteTool("search", schema=words), RemoteTool("add", schema={"type": "object"})]

    async def call(
        self, server: Server, tool: str, arguments: Mapping[str, Any], limit: int, who: Caller
    ) -> ToolOutcome:
        self.calls.append((server.label, tool, arguments))
        if len(self.output) > limit:
            return failed("It is too large.", code=TOO_LARGE)
        return ToolOutcome(self.output if tool == "search" else "5")


def request(client: ApiName, tools: list[Any], **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "tools": tools, **more}
    if client == "responses":
        return {"input": [{"role": "user", "content": "What now?"}], **body}
    return {"messages": [{"role": "user", "content": "What now?"}], "max_tokens": 99, **body}


def function(client: ApiName, name: str, schema: Any, **more: Any) -> dict[str, Any]:
    if client == "messages":
        return {"name": name, "description": f"The {name}.", "input_schema": schema, **more}
    return {"type": "function", "name": name, "description": f"The {name}.", "parameters": schema, **more}


def play(
    client: ApiName,
    body: dict[str, Any],
    *texts: str,
    stream: bool = False,
    backend: ApiName = "chat",
    pool: Pool | None = None,
    policy: Policy | None = None,
    serves: bool = True,
    **mcp_context: Any,
) -> tuple[dict[str, Any], Script, RunnerJob]:
    """Play one turn. Return the answer after validation with the SDK's types, the model's script, and the job."""
    script, api = Script(texts, backend), APIS[client]
    policy = replace(policy or Policy(), backend=backend)
    body = {**body, "stream": stream}
    report = Report()
    given = McpContext(pool, Approvals(), **mcp_context)
    serves = serves and given.serves(body, policy, api)
    calls = HostedCalls(given, api, body, policy, report, "mine") if serves else None

    def ask(round_: Any) -> Any:
        return script.ask(client, stream, round_)

    job = RunnerJob(api, body, api.read(body).form, policy, ask, RoundLimits(), report, hosted=calls)
    status, chunks = asyncio.run(run(job))
    data = b"".join(chunks)
    if status != 200:
        return json.loads(data), script, job
    return (answer_of(client, data) if stream else whole_of(client, data)), script, job


def whole_of(client: ApiName, data: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(data)
    if client == "chat":
        return answer
    (Response if client == "responses" else BetaMessage).model_validate(answer, strict=client == "messages")
    return answer


def answer_of(client: ApiName, data: bytes) -> dict[str, Any]:
    """Validate each event in a stream with the SDK's types, and return the accumulated answer."""
    events = [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: {")]
    kind = TypeAdapter[Any](ResponseStreamEvent if client == "responses" else BetaRawMessageStreamEvent)
    for event in events:
        kind.validate_python(event)
    if client == "responses":
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        final: dict[str, Any] = events[-1]["response"]
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == final["output"]
        return final
    answer = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=data)
    )
    sdk = anthropic.Anthropic(api_key="k", http_client=httpx2.Client(transport=answer))
    with sdk, sdk.beta.messages.stream(model="m", max_tokens=9, messages=[]) as received:
        return received.get_final_message().to_dict()


def without_ids(value: Any) -> Any:
    """Return an answer without IDs and other fields that differ from run to run."""
    changing = ("id", "created_at", "completed_at", "tool_use_id", "item_id", "stop_details", "caller")
    if isinstance(value, dict):
        kept = {key: without_ids(each) for key, each in value.items() if key not in changing}
        return {key: each for key, each in kept.items() if each is not None}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


def following(client: ApiName, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Return the next request in the conversation, in which the client sends back the previous answer."""
    said = {"role": "user", "content": "And now?"}
    if client == "responses":
        return {**body, "input": [*body["input"], *answer["output"], said]}
    return {**body, "messages": [*body["messages"], {"role": "assistant", "content": answer["content"]}, said]}


def begins_with(prompt: list[Any], before: list[Any]) -> bool:
    """Return whether a prompt begins with a complete copy of the previous prompt."""
    *same, last = before
    shown, continued = json.dumps(last), json.dumps(prompt[len(same)])
    text = last["content"] if isinstance(last["content"], str) else last["content"][-1]["text"]
    ends = json.dumps(text)[1:-1]
    return prompt[: len(same)] == same and (shown == continued or ends in continued)


def results(client: ApiName, answer: dict[str, Any]) -> list[dict[str, Any]]:
    items = answer["output"] if client == "responses" else answer["content"]
    return [item for item in items if item["type"] not in ("message", "text")]


def text_of(client: ApiName, answer: dict[str, Any]) -> str:
    if client == "messages":
        return "".join(each["text"] for each in answer["content"] if each["type"] == "text")
    parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


WEB: dict[ApiName, dict[str, Any]] = {
    "responses": {"type": "web_search"},
    "messages": {"type": "web_search_20250305", "name": "web_search"},
}
TOOLS: dict[ApiName, dict[str, Any]] = {
    "responses": {"type": "tool_search"},
    "messages": {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
}
NAME: dict[ApiName, str] = {"responses": "tool_search", "messages": "tool_search_tool_regex"}


# -- web search


@each("stream", [True, False])
@each("client", SHOWN)
@each("backend", BACKENDS)
def test_web_search_results_are_cited(client: ApiName, backend: ApiName, stream: bool) -> None:
    """The MCP server receives only the query of a web search. The model sees the titles, URLs and texts of the results,
    and the answer cites them.
    """
    pool = Pool()
    body = request(client, [WEB[client]])
    last = "See [Herons](https://birds.example/heron)."
    asked = ("I look. " + block("web_search", query="herons"), last)
    answer, script, job = play(
        client, body, *asked, backend=backend, stream=stream, pool=pool, servers={"web": SEARCHER}
    )
    assert pool.calls == [("web", "search", {"q": "herons"})]
    assert "1. Herons\nhttps://birds.example/heron\nMay 2\nGrey ones are common." in "".join(
        json.dumps(script.asked[1]).encode().decode("unicode_escape").replace("\\n", "\n")
    )
    assert text_of(client, answer).replace("\n", "") == f"I look. {last}"
    assert job.report.mcp_calls == ["OK:web.search"]
    if client == "messages":
        call, found = results(client, answer)
        assert (call["type"], call["name"], call["input"]) == ("server_tool_use", "web_search", {"query": "herons"})
        assert found["tool_use_id"] == call["id"]
        pages = [(each["type"], each["title"], each["url"]) for each in found["content"]]
        assert pages[0] == ("web_search_result", "Herons", "https://birds.example/heron")
        assert answer["usage"]["server_tool_use"]["web_search_requests"] == 1
        (note,) = answer["content"][-1]["citations"]
        assert (note["url"], note["title"]) == ("https://birds.example/heron", "Herons")
        assert note["cited_text"] == "Grey ones are common."
        assert answer["stop_reason"] == "end_turn"
        return
    *_, call = results(client, answer)
    assert (call["type"], call["status"], call["action"]["query"]) == ("web_search_call", "completed", "herons")
    (note,) = answer["output"][-1]["content"][0]["annotations"]
    assert (note["type"], note["url"], note["title"]) == ("url_citation", "https://birds.example/heron", "Herons")
    assert last[note["start_index"] : note["end_index"]] == last[4:-1]


@each("client", SHOWN)
def test_excluded_domains_are_filtered(client: ApiName) -> None:
    """If the client excludes a domain, search results from that domain are shown neither to the client nor to the
    model.
    """
    allowed = {"allowed_domains": ["example.net"]}
    tool = WEB[client] | ({"filters": allowed} if client == "responses" else allowed)
    asked = (block("web_search", query="x"), "So.")
    answer, script, _ = play(client, request(client, [tool]), *asked, pool=Pool(), servers={"web": SEARCHER})
    assert "birds.example" not in json.dumps([answer, script.asked])
    assert "ads.example.net" in json.dumps(script.asked[1])
    blocked = WEB["messages"] | {"blocked_domains": ["example.net"]}
    answer, script, _ = play("messages", request("messages", [blocked]), *asked, pool=Pool(), servers={"web": SEARCHER})
    assert "ads.example.net" not in json.dumps([answer, script.asked])


@each("stream", [True, False])
def test_search_beyond_the_limit_is_an_error(stream: bool) -> None:
    """If the model makes more searches than the client allows, it receives an error for each additional search."""
    body = request("messages", [WEB["messages"] | {"max_uses": 1}])
    asked = (block("web_search", query="x") + block("web_search", query="y"), "So.")
    pool = Pool()
    answer, script, _ = play("messages", body, *asked, pool=pool, servers={"web": SEARCHER}, stream=stream)
    assert len(pool.calls) == 1
    assert results("messages", answer)[-1]["content"] == {
        "type": "web_search_tool_result_error",
        "error_code": "max_uses_exceeded",
    }
    assert "the search failed (max_uses_exceeded)" in str(script.asked[1])


@each("client", SHOWN)
def test_failed_search_is_shown_to_the_model(client: ApiName) -> None:
    """If a search fails, for example because its output is too large, the model receives the error, and the answer
    continues.
    """
    policy = Policy(max_tool_bytes=100)
    asked = (block("web_search", query="x"), "I cannot.")
    body = request(client, [WEB[client]])
    answer, script, _ = play(client, body, *asked, pool=Pool(), servers={"web": SEARCHER}, policy=policy)
    assert text_of(client, answer) == "I cannot."
    assert "the search failed (unavailable)" in str(script.asked[1])
    failed_one = results(client, answer)[-1]
    assert failed_one.get("status", "failed") == "failed"


@each("client", SHOWN)
def test_missing_search_tool_is_reported(client: ApiName) -> None:
    """If the MCP server does not have the configured search tool, the report names the server and the tool."""
    wrong = replace(SEARCHER, web_search="fnd")
    asked = (block("web_search", query="x"), "I cannot.")
    answer, _, job = play(client, request(client, [WEB[client]]), *asked, pool=Pool(), servers={"web": wrong})
    assert text_of(client, answer) == "I cannot."
    assert job.report.mcp_calls == ["SERVER_FAILED:web.fnd"]


def test_forced_search_runs_once() -> None:
    """If the tool choice names the search, the model has to search in the first round. In the next round, it can
    answer.
    """
    choice = {"type": "tool", "name": "web_search"}
    body = request("messages", [WEB["messages"]], tool_choice=choice)
    answer, _, _ = play("messages", body, block("web_search", query="x"), "So.", pool=Pool(), servers={"web": SEARCHER})
    assert text_of("messages", answer) == "So."
    body = request("responses", [WEB["responses"]], tool_choice={"type": "web_search_preview"})
    answer, _, _ = play(
        "responses", body, block("web_search", query="x"), "So.", pool=Pool(), servers={"web": SEARCHER}
    )
    assert text_of("responses", answer) == "So."


def test_stored_results_of_a_search_are_restored() -> None:
    """If a client sends back a search without its results, the results are restored from storage, so that the next
    prompt continues the previous one. Another owner cannot access them.
    """
    body = request("responses", [WEB["responses"], function("responses", "now", {"type": "object"})])
    mcp_context: dict[str, Any] = {"servers": {"web": SEARCHER}, "hidden": HiddenCalls(), "owner": "me"}
    asked = (block("web_search", query="x"), "So it is.")
    answer, script, _ = play("responses", body, *asked, pool=Pool(), **mcp_context)
    for item in answer["output"]:
        if item["type"] == "web_search_call":
            del item["results"], item["id"], item["action"]["sources"]
    more = following("responses", body, answer)
    _, later, _ = play("responses", more, "Yes.", pool=Pool(), **mcp_context)
    assert begins_with(later.asked[0], script.asked[-1])
    _, other, _ = play("responses", more, "Yes.", pool=Pool(), **mcp_context | {"owner": "you"})
    assert "Grey ones are common." not in str(other.asked[0])
    assert "search again" in str(other.asked[0])


def test_tool_choice_loses_only_its_demand() -> None:
    """``after_calls`` converts a Messages API tool choice so that it no longer requires a call. Its other fields are
    kept.
    """
    value = {"type": "tool", "name": "web_search", "disable_parallel_tool_use": True}
    assert after_calls(value) == {"type": "auto", "disable_parallel_tool_use": True}
    assert after_calls({"type": "auto", "disable_parallel_tool_use": True})["disable_parallel_tool_use"] is True


@each("client", SHOWN)
def test_invented_results_are_dropped(client: ApiName) -> None:
    """If the model writes text after a search call, it has invented the results, because it has not seen them yet. The
    text is dropped.
    """
    asked = (block("web_search", query="x") + "\nI found: nonsense.", "So it is.")
    alone = replace(SEARCHER, allowed=(NONE,))
    answer, _, _ = play(client, request(client, [WEB[client]]), *asked, pool=Pool(), servers={"web": alone})
    assert text_of(client, answer) == "So it is."


@each("client", SHOWN)
def test_operator_lists_match_a_search(client: ApiName) -> None:
    """The operator's allowlist can contain either the name or the type of a search tool."""
    asked = (block("web_search", query="x"), "So it is.")
    body = request(client, [WEB[client], function(client, "now", {"type": "object"})])
    for names, is_made in (({"now"}, False), ({"now", "web_search"}, True), ({"now", WEB[client]["type"]}, True)):
        policy, pool = Policy(tool_allowlist=frozenset(names)), Pool()
        play(client, body, *asked, pool=pool, servers={"web": SEARCHER}, policy=policy)
        assert bool(pool.calls) == is_made


def test_search_only_for_programs_is_dropped() -> None:
    """A search tool that only code may call is dropped with a warning, like other unsupported hosted tools."""
    tool = WEB["messages"] | {"type": "web_search_20260209", "allowed_callers": ["code_execution_20260120"]}
    body = request("messages", [tool, function("messages", "now", {"type": "object"})])
    _, script, job = play("messages", body, "Well.", pool=Pool(), servers={"web": SEARCHER})
    assert "web_search" not in str(script.asked[0])
    assert job.report.warnings == ["TOOL_DROPPED:web_search_20260209"]


# -- deferred tools


def deferring(client: ApiName, **more: Any) -> dict[str, Any]:
    tools = [
        TOOLS[client],
        function(client, "now", {"type": "object"}),
        function(client, "get_weather", CITY, defer_loading=True),
        function(client, "send_mail", {"type": "object"}, defer_loading=True),
    ]
    return request(client, tools, **more)


@each("stream", [True, False])
@each("client", SHOWN)
@each("backend", BACKENDS)
def test_deferred_tool_is_found_and_called(client: ApiName, backend: ApiName, stream: bool) -> None:
    """At first, the model sees only the name of a deferred tool. It searches for the tool, sees its schema, and calls
    it.
    """
    search = {"pattern": "weath.r"} if client == "messages" else {"query": "the weather"}
    asked = (block(NAME[client], **search), block("get_weather", city="Bonn"))
    answer, script, job = play(client, deferring(client), *asked, backend=backend, stream=stream)
    first, second = map(str, script.asked)
    assert "- get_weather: The get_weather." in first
    assert NAME[client] in first
    assert '"city"' not in first
    assert '"city"' in second
    assert begins_with(script.asked[1], script.asked[0])
    assert job.report.calls == ["get_weather"]
    assert job.report.mcp_calls == [f"OK:{NAME[client]}"]
    if client == "messages":
        call, found, made = results(client, answer)
        assert (call["type"], call["name"], call["input"]) == ("server_tool_use", NAME[client], search)
        references = found["content"]["tool_references"]
        assert references == [{"type": "tool_reference", "tool_name": "get_weather"}]
        assert (made["type"], made["input"], answer["stop_reason"]) == ("tool_use", {"city": "Bonn"}, "tool_use")
        return
    call, found, made = results(client, answer)
    assert (call["type"], call["execution"], call["arguments"]) == ("tool_search_call", "server", search)
    assert (found["type"], [each["name"] for each in found["tools"]]) == ("tool_search_output", ["get_weather"])
    assert (made["type"], made["arguments"]) == ("function_call", '{"city": "Bonn"}')


@each("client", SHOWN)
def test_invalid_guess_becomes_a_search(client: ApiName) -> None:
    """If the model guesses the arguments of a tool that it has not seen, and the arguments are invalid, the call
    becomes a search, which shows the tool's schema.
    """
    asked = (block("get_weather"), block("get_weather", city="Bonn"))
    answer, script, job = play(client, deferring(client), *asked)
    assert [item["type"] for item in results(client, answer)][-1] in ("tool_use", "function_call")
    assert job.report.calls == ["get_weather"]
    assert '"city"' in str(script.asked[1])
    assert next(item["type"] for item in results(client, answer)) in ("server_tool_use", "tool_search_call")


@each("client", SHOWN)
def test_valid_guess_is_a_call(client: ApiName) -> None:
    """If the model guesses valid arguments for a tool that it has not seen, the call is sent without a search."""
    answer, script, _ = play(client, deferring(client), block("get_weather", city="Bonn"))
    assert len(script.asked) == 1
    assert len(results(client, answer)) == 1


@each("client", SHOWN)
def test_search_without_matches_returns_an_empty_result(client: ApiName) -> None:
    """If a search finds no tools, its result is empty, and the answer continues."""
    search = {"pattern": "zzz"} if client == "messages" else {"query": "zzz"}
    answer, _, _ = play(client, deferring(client), block(NAME[client], **search), "There is none.")
    assert text_of(client, answer) == "There is none."
    found = results(client, answer)[1]
    assert (found.get("tools") or (found.get("content") or {}).get("tool_references")) in ([], None)


def test_deferred_tools_in_a_namespace_are_found() -> None:
    """If a search finds deferred tools in a namespace, the result is the namespace with only the matching tools."""
    inner = [function("responses", name, CITY, defer_loading=True) for name in ("get_weather", "get_tide")]
    space = {"type": "namespace", "name": "sea", "description": "The sea.", "tools": inner}
    body = request("responses", [TOOLS["responses"], space])
    asked = (block("tool_search", query="tide"), block("sea__get_tide", city="Bonn"))
    answer, _, _ = play("responses", body, *asked)
    _, found, made = results("responses", answer)
    assert [[each["name"] for each in tool["tools"]] for tool in found["tools"]] == [["get_tide"]]
    assert (made["namespace"], made["name"]) == ("sea", "get_tide")


@each("client", BACKENDS)
def test_deferred_tools_are_shown_without_a_search_tool(client: ApiName) -> None:
    """If a request has deferred tools but no search tool, the tools are shown immediately. The exception is the
    Messages API, whose clients can search for tools themselves.
    """
    tool = function(client, "get_weather", CITY, defer_loading=True)
    tools = [function(client, "now", {"type": "object"}), tool]
    tools = [{"type": "function", "function": each} for each in tools] if client == "chat" else tools
    _, script, _ = play(client, request(client, tools), "Well.")
    assert ('"city"' in str(script.asked[0])) == (client != "messages")


def test_requests_with_a_search_are_recognized() -> None:
    """A request that contains a hosted search is recognized from the bytes of its body. A search tool that the client
    runs is not mistaken for a hosted search.
    """
    mcp_context = McpContext(None, Approvals())
    for client in SHOWN:
        body = deferring(client)
        assert mcp_context.is_asked(json.dumps(body).encode())
        answer, _, _ = play(client, body, block(NAME[client], query="now"), "So.")
        assert mcp_context.is_asked(json.dumps(following(client, body, answer)).encode())
    own = {"type": "tool_search", "execution": "client", "description": "Search."}
    assert not mcp_context.is_asked(json.dumps(request("responses", [own])).encode())
    assert not mcp_context.is_asked(b"{}")


@each("client", SHOWN)
def test_impossible_search_shows_all_tools(client: ApiName) -> None:
    """If no further round is possible, all deferred tools are shown immediately, and the search tool is dropped with a
    warning.
    """
    _, script, job = play(client, deferring(client), "Well.", serves=False)
    assert '"city"' in str(script.asked[0])
    assert [warning.partition(":")[0] for warning in job.report.warnings] == ["TOOL_DROPPED"]


# -- MCP servers in Messages API requests

MCP = {"mcp_servers": [{"type": "url", "name": "calc", "url": "https://calc.example/mcp", "authorization_token": "t"}]}
TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "calc"}
HOSTS = {"runs_clients": True, "hosts": ("calc.example",)}


@each("stream", [True, False])
@each("backend", BACKENDS)
def test_mcp_servers_of_a_messages_request(backend: ApiName, stream: bool) -> None:
    """If a Messages API request declares MCP servers, the client receives calls to them as content blocks. Without a
    toolset, all tools are offered.
    """
    for body in (request("messages", [TOOLSET], **MCP), request("messages", [], **MCP)):
        pool = Pool()
        answer, script, _ = play(
            "messages",
            body,
            "Well. " + block("calc__add", a=2),
            "5 it is.",
            backend=backend,
            pool=pool,
            stream=stream,
            **HOSTS,
        )
        assert pool.calls == [("calc", "add", {"a": 2})]
        call, result = results("messages", answer)
        assert (call["type"], call["server_name"], call["name"], call["input"]) == (
            "mcp_tool_use",
            "calc",
            "add",
            {"a": 2},
        )
        assert (result["type"], result["tool_use_id"], result["is_error"]) == ("mcp_tool_result", call["id"], False)
        assert [each["text"] for each in result["content"]] == ["5"]
        assert "calc__search" in str(script.asked[0])


@each(
    "toolset",
    [
        {"default_config": {"enabled": False}, "configs": {"add": {"enabled": True}}},
        {"configs": {"search": {"enabled": False}}},
    ],
)
def test_toolset_selects_tools(toolset: dict[str, Any]) -> None:
    """A toolset can enable or disable individual tools of an MCP server."""
    body = request("messages", [TOOLSET | toolset], **MCP)
    _, script, _ = play("messages", body, "Well.", pool=Pool(), **HOSTS)
    assert "calc__add" in str(script.asked[0])
    assert "calc__search" not in str(script.asked[0])


def test_disallowed_host_is_a_400() -> None:
    """If an MCP server is on a host that is not allowed, the request is refused, and the error names the
    ``toolsim_mcp_hosts`` option.
    """
    body = request("messages", [TOOLSET], **MCP)
    refused, _, _ = play("messages", body, "Well.", pool=Pool(), runs_clients=True, hosts=("other.example",))
    assert "toolsim_mcp_hosts" in refused["error"]["message"]


def test_operator_servers_stay_hidden() -> None:
    """If a client does not declare MCP servers, it does not receive content blocks for calls to the operator's
    servers.
    """
    servers = {"calc": Server("calc", ("x",), free=(EVERY,))}
    body = request("messages", [function("messages", "now", {"type": "object"})])
    answer, _, _ = play("messages", body, block("calc__add", a=2), "5 it is.", pool=Pool(), servers=servers)
    assert [each["type"] for each in answer["content"]] == ["text"]


@each("client", SHOWN)
def test_tools_of_a_deferred_server_are_found(client: ApiName) -> None:
    """A search also finds the tools of a deferred MCP server. Each prompt continues the previous one."""
    if client == "messages":
        body = request(client, [TOOLS[client], TOOLSET | {"default_config": {"defer_loading": True}}], **MCP)
    else:
        server = {"type": "mcp", "server_label": "calc", "server_url": "https://calc.example/mcp"}
        server |= {"require_approval": "never", "defer_loading": True}
        body = request(client, [TOOLS[client], server])
    search = {"pattern": "add"} if client == "messages" else {"query": "add"}
    asked = (block(NAME[client], **search), block("calc__add", a=2), "5 it is.")
    pool = Pool()
    answer, script, _ = play(client, body, *asked, pool=pool, **HOSTS)
    assert pool.calls == [("calc", "add", {"a": 2})]
    assert text_of(client, answer) == "5 it is."
    assert begins_with(script.asked[2], script.asked[1])
    again, later, _ = play(client, following(client, body, answer), "Yes.", pool=pool, **HOSTS)
    assert text_of(client, again) == "Yes."
    assert begins_with(later.asked[0], script.asked[2])


# -- all hosted tools


def cases(client: ApiName) -> list[tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]]:
    search = {"pattern": "weather"} if client == "messages" else {"query": "weather"}
    found: list[tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = [
        (
            request(client, [WEB[client], function(client, "now", {"type": "object"})]),
            ("Hm. " + block("web_search", query="x") + block("web_search", query="y"), "So it is."),
            {"servers": {"web": SEARCHER}},
        ),
        (
            deferring(client),
            ("Hm. " + block(NAME[client], **search), "And " + block("get_weather"), "So it is."),
            {},
        ),
    ]
    if client == "messages":
        found.append((request(client, [TOOLSET], **MCP), ("Hm. " + block("calc__add", a=1), "So it is."), HOSTS))
    return found


@each("client", SHOWN)
def test_streamed_and_non_streamed_answers_are_equal(client: ApiName) -> None:
    """A streamed answer equals the non-streamed answer, except for IDs and times."""
    for body, asked, mcp_context in cases(client):
        whole, _, _ = play(client, body, *asked, pool=Pool(), **mcp_context)
        streamed, _, _ = play(client, body, *asked, pool=Pool(), stream=True, **mcp_context)
        assert without_ids(streamed) == without_ids(whole)


@each("client", SHOWN)
@each("backend", BACKENDS)
@each("policy", [Policy(), Policy(history="bracketed")])
def test_next_prompt_begins_with_the_previous_one(client: ApiName, backend: ApiName, policy: Policy) -> None:
    """If the client sends back all blocks or items of the answer, the next prompt begins with the previous prompt."""
    for body, asked, mcp_context in cases(client):
        answer, script, _ = play(client, body, *asked, pool=Pool(), backend=backend, policy=policy, **mcp_context)
        more = following(client, body, answer)
        _, later, _ = play(client, more, "Yes.", pool=Pool(), backend=backend, policy=policy, **mcp_context)
        assert begins_with(script.asked[-1], script.asked[0])
        assert begins_with(later.asked[0], script.asked[-1])


DEEP = f"toolsim:{b64encode(b'[' * 50_000).decode()}"
JUNK: tuple[Any, ...] = (None, True, -1, "", "x", "toolsim:", "toolsim:/w==", DEEP, [], [[]], [{}], {}, {"type": ["x"]})


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in inner:
        yield (*path, key)
        yield from paths(member, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    """Return a copy of a JSON value in which the value at the path is replaced."""
    if not path:
        return by
    copied = value.copy()
    copied[path[0]] = replaced(value[path[0]], path[1:], by)
    return copied


@each("client", SHOWN)
def test_arbitrary_values_cause_at_most_a_bad_request(client: ApiName) -> None:
    """If any part of a declaration, call or result is replaced with an arbitrary value, the only exception that can
    occur is BadRequest.
    """
    for body, asked, mcp_context in cases(client):
        answer, _, _ = play(client, body, *asked, pool=Pool(), **mcp_context)
        sent = following(client, body, answer)
        # Each path is tested with three values from ``JUNK``.
        for number, path in enumerate([*paths(sent)] * 3):
            changed = replaced(sent, path, JUNK[number % len(JUNK)])
            given = McpContext(Pool(), Approvals(), **{"runs_clients": True, "hosts": HOSTS["hosts"], **mcp_context})
            policy, api = Policy(backend="chat"), APIS[client]
            data = json.dumps(changed).encode()
            with suppress(BadRequest):
                rewrite_request(client, "/v1", data, policy, output_mode=None, report=Report())
            if given.serves(changed, policy, api):
                with suppress(BadRequest):
                    calls = HostedCalls(given, api, changed, policy, Report(), "mine")
                    asyncio.run(calls.prepare())
                    calls.for_backend()
                    api.read(calls.body)
