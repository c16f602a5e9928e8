"""Runs MCP tools and searches for one answer. The model sees them as functions, and their calls run between rounds.

The tools of MCP servers are listed before the first round. Searches are tools that a request declares, such as a web
search (``searches.py``).

    prepare ─▶ round ─▶ run ─▶ round ─▶ … ─▶ a round without such calls

1. In the requests of the rounds, all tools are functions (``wire/hosted_items.py``). This module runs only the calls to
   functions that represent MCP tools or searches.
2. A call is announced when it is complete, and run when its round has ended. In the next round, the model sees its own
   text, the calls and their outputs, and continues. The calls of one round run concurrently.
3. If a round also contains calls to the client's functions, the answer ends after the outputs of toolsim's calls. The
   answer also ends at a call that needs the client's approval: an item in the answer requests the approval, and the
   call runs only when a later request contains the approval. If the operator decides instead, the answer waits for the
   decision.
4. If a call cannot be made, or fails, the model receives the error as text. A failing MCP server does not end the
   answer.
5. Calls that are not shown to the client are inserted into the history of its next request (``hidden_calls.py``).
6. In the last round that the limits allow, no tools are offered, so that the model answers in plain text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any

from toolsim.core.conversation import Call, Called, CallOutput, ClientRequest, Text
from toolsim.core.errors import BadRequest
from toolsim.core.events import CallDelta, CallEnded, CallStarted, ClientEvent, Ended, TextDelta
from toolsim.core.plan import Tool
from toolsim.core.policy import Policy
from toolsim.core.report import Report, entry
from toolsim.mcp.approvals import ApprovalPrompt, Approvals, OperatorApprovals, PendingApproval
from toolsim.mcp.catalog import HostedTool, McpCatalog
from toolsim.mcp.outcome import LIMIT, REFUSED, UNREACHABLE, ToolOutcome, failed
from toolsim.mcp.runtime import Caller, Pool, engine
from toolsim.mcp.servers import Server
from toolsim.rounds.hidden_calls import HiddenCalls
from toolsim.rounds.searches import Search, ToolSearch, WebSearch
from toolsim.wire import mcp_items
from toolsim.wire.api import Api
from toolsim.wire.apis import backend_of
from toolsim.wire.hosted_items import WEB_SEARCH, ServedCall, is_deferred, search_kind, search_tools
from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.json_fields import array, count, loaded, mapping, mappings, string
from toolsim.wire.mcp_items import ApprovalDecision, McpCall
from toolsim.wire.restore_hidden import answer_key, whole_key, with_hidden
from toolsim.wire.web_search import query_of, query_parameter, read_limits

_MAX_WORDS = 65_536
"""Maximum length, in characters, of the model's own text that the next round repeats."""
_NO = "The user refused this call."
# An approval can be used only once. A client that received an error instead of the answer might send the approval
# again, although the call has already been run. The model then receives this message.
_STALE = "This approval is unknown: it was already used, has expired or was never requested. Nothing was run this time."
_WITHDRAWN = "This call is no longer allowed here. It was not run."
_OPERATOR = "The operator refused this call, or was not available to approve it. It was not run."
_NOBODY = "This call needs approval, which cannot be given here. It was not run."


SEARCH = b'"tool_search'
"""Bytes that occur in the body of every request that declares a search for deferred tools."""
_NOT_BY_CLIENT = (b'"tool_search_tool_', b'"server"')


def has_search(body: bytes) -> bool:
    """Return whether a request's bytes suggest a search for deferred tools that the client does not run itself.

    This check avoids parsing the requests of Codex, which runs the search itself.
    """
    if SEARCH not in body:
        return False
    return b'"execution"' not in body or any(mark in body for mark in _NOT_BY_CLIENT)


Watch = Callable[[Server, ServedCall, Awaitable[ToolOutcome]], Awaitable[ToolOutcome]]
"""A function that awaits a call to an MCP server's tool and returns the outcome of the call."""


@dataclass(frozen=True, slots=True)
class McpContext:
    """The operator's settings for MCP servers, and the identity of the client."""

    pool: Pool | None
    approvals: Approvals
    servers: Mapping[str, Server] = field(default_factory=dict)
    """The servers in the operator's MCP configuration file, by label."""
    runs_clients: bool = False
    """Whether clients are allowed to name their own MCP servers in a request."""
    hosts: tuple[str, ...] = ()
    max_calls: int = 32
    hidden: HiddenCalls = field(default_factory=HiddenCalls)
    """Stores calls that were not shown to clients."""
    owner: str = ""
    """A digest of the client's API key."""
    desk: OperatorApprovals | None = None
    """The approval prompts for the operator, or None if clients approve the calls."""
    patience: float = 120.0
    """Timeout, in seconds, for the operator's decision about a call."""
    watch: Watch | None = None
    """A function that observes each call, or None if calls are not observed."""

    @property
    def marks(self) -> tuple[bytes, ...]:
        """Byte strings to look for in a request's body. If the proxy might run tools for the request, the body contains
        at least one of these strings.
        """
        if self.servers:
            return (b"",)
        return (SEARCH, b'"mcp') if self.runs_clients else (SEARCH,)

    def is_asked(self, body: bytes) -> bool:
        """Return whether the proxy might run tools for a request. Only the bytes of the body are examined."""
        return any(mark in body for mark in self.marks if mark != SEARCH) or has_search(body)

    @property
    def searcher(self) -> Server | None:
        """The MCP server that runs web searches, or None if there is none."""
        return next((server for server in self.servers.values() if server.web_search), None)

    def serves(self, body: Mapping[str, Any], policy: Policy, api: Api) -> bool:
        """Return whether the proxy runs tools for a request."""
        return bool(self.servers) or (self.runs_clients and _names_mcp(body)) or _searches_tools(body, policy, api)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A call to be run after the round."""

    item: ServedCall
    shown: str
    """The model's name for the tool."""
    by: Server | Search
    """The server or search that runs the call."""
    is_shown: bool
    """Whether the call is shown to the client."""
    needs_approval: bool = False
    """Whether the operator has to approve the call."""
    outcome: ToolOutcome | None = None
    """The outcome of a call that cannot be run, for example because a limit has been reached; None if it can be run."""


class HostedCalls:
    """The MCP tools and searches that the proxy runs for one request.

    ``answer`` is the ID of the client's flow. The attribute ``body`` is the request for the next round.
    """

    def __init__(
        self,
        mcp_context: McpContext,
        api: Api,
        body: Mapping[str, Any],
        policy: Policy,
        report: Report,
        answer: str = "",
    ) -> None:
        self._hosting = mcp_context
        self._api = api
        self._policy = policy
        self._answer = answer
        self._asker = Caller(mcp_context.owner, answer)
        declared = [tool for _, tool in mcp_items.declared(body)]
        # This string is part of the key under which an answer is stored. It includes the servers that the client named,
        # so that the outputs of a server are returned only to clients that are allowed to use it.
        self._whose = mcp_context.owner + dump([*mappings(body.get("mcp_servers")), *declared])
        self._items = api.hosted
        self._conversation = b""
        self._hidden: list[Called] = []
        """The calls of this answer that are not shown to the client."""
        # The output that the client has received: the text, and the calls to the client's functions, each as a name and
        # fragments of the arguments.
        self._said: list[str] = []
        self._shown: list[tuple[str, list[str]]] = []
        self._report = report
        self._servers: dict[str, Server] = {}
        self._catalog = McpCatalog(())
        self._searches: dict[str, Search] = {}
        """The searches that the request declares, by the names under which the model calls them."""
        self._declared: set[str] = set()
        """The labels of the MCP servers that the request names."""
        self._listed_by: set[str] = set()
        """The labels of the MCP servers that have listed their tools."""
        limit = count(body, "max_tool_calls")
        self._left = min(mcp_context.max_calls, limit) if limit > 0 else mcp_context.max_calls
        self._open: tuple[CallStarted, list[str]] | None = None
        self._words: list[str] = []
        self._pending: list[_Pending] = []
        self.is_waiting = False
        """Whether the answer ends because the client has to approve a call first."""
        self.body = body

    @property
    def has_work(self) -> bool:
        """Whether the finished round contains calls that toolsim runs, or that wait for approval."""
        return bool(self._pending) or self.is_waiting

    @property
    def tools(self) -> frozenset[str]:
        """The names of the functions that represent MCP tools and searches in the rounds."""
        return self._catalog.shown | self._searches.keys()

    # -- before the first round --

    async def prepare(self) -> list[ClientEvent]:
        """Query the MCP servers for their tools, run approved calls, and return the resulting events.

        Raises BadRequest if the request's declarations or approvals are invalid.
        """
        body, mcp_context, items = self.body, self._hosting, self._items
        self._servers = dict(mcp_context.servers)
        if mcp_context.runs_clients:
            for param, declared in items.declared(body):
                server = engine().read_tool(declared, param, mcp_context.servers, mcp_context.hosts)
                self._servers[server.label] = server
                self._declared.add(server.label)
        decisions = mcp_items.decisions(body)
        request = self._api.read(body)
        names = items.own_names(body)
        self._catalog = McpCatalog(names, self._policy.tool_allowlist, self._policy.tool_denylist)
        emitted = await self._listed(mcp_items.listed(body))
        if self._hosting.searcher is not None:
            body = items.with_results(body, self._results_of)
        if items.shows != "all":
            self._conversation = whole_key(body, self._whose)
            body = with_hidden(body, self._whose, mcp_context.hidden.find, self._api)
        decided: dict[str, Called] = {}
        for decision in decisions:
            events, pair = await self._decided(decision)
            emitted += events
            decided[decision.id] = pair
        searches = self._find_searches(body, request)
        functions = self._catalog.functions()
        functions += [{**self._searches[name].function, "searches": kind} for kind, name in searches.items()]
        self.body = items.as_functions(body, functions, self._catalog.name, self._is_ours, decided)
        if "tool_choice" in body:
            choice = items.choice(body["tool_choice"], self._catalog.names, searches)
            self.body = {**self.body, "tool_choice": choice}
        return emitted if items.shows == "all" else []

    def _find_searches(self, body: Mapping[str, Any], request: ClientRequest) -> dict[str, str]:
        """Find the searches that the request declares and the proxy can run. Return their names by kind."""
        found: dict[str, str] = {}
        if leaves_searches(self._policy, self._api):
            return found
        for param, kind, declared in search_tools(body):
            search: Search | None = None
            if kind in found:
                continue
            if kind == "web_search" and (server := self._hosting.searcher) is not None:
                name = self._catalog.free_name(WEB_SEARCH)
                limits = read_limits(declared, param)
                search = WebSearch(self._items, name, limits, partial(self._search_web, server))
            elif kind == "tool_search" and (deferred := self._deferred(request)):
                search = ToolSearch(self._items, self._items.search_function(declared), deferred, self._listing(body))
            if search is not None and not self._policy.excludes((search.name, string(declared.get("type")))):
                self._searches[search.name] = search
                found[kind] = search.name
        return found

    def _results_of(self, query: str) -> Sequence[Mapping[str, Any]] | None:
        """Return the results of the client's latest search for ``query``, or None if they are no longer stored."""
        calls = self._hosting.hidden.find(_search_key(self._hosting.owner, query))
        return mappings((loaded(calls[0][1].text) or {}).get("results")) if calls else None

    def _deferred(self, request: ClientRequest) -> list[Tool]:
        """Return the tools that a search can find: the deferred tools of the client and of the MCP servers."""
        return [tool for tool in (request.first_tools or request.tools) if tool.deferred] + [
            Tool(name, name, description=found.tool.description, parameters=found.tool.schema, deferred=True)
            for name, found in self._catalog.tools.items()
            if found.server.is_deferred(found.tool.name)
        ]

    def _listing(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a request body that declares all tools that a search can find."""
        return {"tools": [*array(body.get("tools")), *self._catalog.functions()]}

    async def _search_web(self, server: Server, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Search the web with an MCP server's tool. The query is passed as the tool's query parameter, which has a
        different name on each server.
        """
        pool = self._hosting.pool
        assert pool is not None
        try:
            tools = await pool.tools(server, self._asker)
            schema = next(tool.schema for tool in tools if tool.name == server.web_search)
        except Exception as problem:
            # The MCP server is unreachable or has no such tool. Either problem has already been logged at startup.
            self._note(UNREACHABLE, f"{server.label}.{server.web_search}")
            return failed(str(problem))
        name = query_parameter(schema)
        query = {name: arguments["query"]}
        item = McpCall(mcp_items.new_call_id(), server.label, server.web_search, dump(query))
        return await self._called(server, item)

    def _keep_results(self, call: ServedCall, outcome: ToolOutcome) -> None:
        """Store the results of a web search, because not every client sends results back."""
        query = query_of(parse_object(call.arguments.encode("utf-8", "replace")) or {})
        kept = CallOutput(call.id, (Text(dump({"results": [*outcome.found]})),))
        owner = self._hosting.owner
        self._hosting.hidden.put(_search_key(owner, query), [(Call(call.id, WEB_SEARCH, ""), kept)], owner)

    def for_backend(self) -> dict[str, Any]:
        """Return the request without the tools that the proxy runs, and without a tool choice that might require one of
        these tools.
        """
        searches = {"web_search"} if self._hosting.searcher is not None else set[str]()
        searches |= {"tool_search"} if is_deferred(self.body) else set()
        if leaves_searches(self._policy, self._api):
            searches = set()

        def is_run_here(tool: Mapping[str, Any]) -> bool:
            label = string(tool.get("server_label"))
            is_server = tool.get("type") == "mcp" and (label in self._hosting.servers or self._hosting.runs_clients)
            return is_server or search_kind(tool) in searches

        tools = array(self.body.get("tools"))
        body = {**self.body, "tools": [tool for tool in tools if not is_run_here(mapping(tool))]}
        choice = body.get("tool_choice")
        if choice == "required" or (isinstance(choice, dict) and choice.get("type") not in ("function", "custom")):
            del body["tool_choice"]
        return body

    @property
    def policy(self) -> Policy:
        """The policy for the rounds.

        It discards text that a model writes after a call, because the model has invented it without seeing the output.
        The tool lists are extended, because the operator's lists can contain either an MCP tool's own name or the
        model's name for it.
        """
        policy = replace(self._policy, tool_denylist=self._policy.tool_denylist | self._catalog.masked)
        if policy.stop_after_tools == "auto" and self.tools:
            policy = replace(policy, stop_after_tools="on")
        if policy.tool_allowlist:
            policy = replace(policy, tool_allowlist=policy.tool_allowlist | self.tools)
        return policy

    async def _listed(self, known: set[str]) -> list[ClientEvent]:
        """List the tools of all MCP servers concurrently.

        Return the events that show the lists to the client, except for servers whose labels are in ``known``.
        """
        pool = self._hosting.pool
        if pool is None:
            return []
        servers = list(self._servers.values())
        asked = [pool.tools(server, self._asker) for server in servers]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        emitted: list[ClientEvent] = []
        for server, answer in zip(servers, answers, strict=True):
            error = None
            if isinstance(answer, BaseException):
                if not isinstance(answer, Exception):
                    raise answer
                error, offered = str(answer), []
                self._report.warnings.append(entry("MCP_SERVER_FAILED", server.label))
            else:
                offered = self._catalog.add(server, answer)
                self._listed_by.add(server.label)
            if server.label not in known and (offered or error or not server.web_search):
                emitted += mcp_items.list_events(server.label, [tool.listed() for tool in offered], error)
        return emitted

    def _is_ours(self, label: str) -> bool:
        return label in self._servers or self._hosting.runs_clients

    async def _decided(self, decision: ApprovalDecision) -> tuple[list[ClientEvent], Called]:
        """Process a client's decision about a call, and run the call if it is approved.

        Return the events of the call, and the call with its output for the model.
        """
        asked = self._hosting.approvals.take(decision.id, self._hosting.owner)
        if asked is None and not decision.asked:
            message = f"Approval request '{decision.id[:80]}' not found."
            raise BadRequest(message, decision.param, "invalid_value")
        label, name = string(decision.asked.get("server_label")), string(decision.asked.get("name"))
        shown, arguments = self._catalog.name(label, name), string(decision.asked.get("arguments"))
        if asked is not None:  # A client could forge the approval request that it echoes, so stored values are used.
            name, shown, arguments = asked.tool, asked.shown, asked.arguments
        events: list[ClientEvent] = []
        call_id = decision.id
        refusal = self._refusal(decision, asked)
        if asked is None or refusal:
            outcome = failed(refusal, REFUSED)
            self._note("REFUSED", name)
        else:
            item = self._items.mcp_call(asked.server.label, name, arguments, decision.id)
            outcome = await self._called(asked.server, item)
            events = [*item.begin(), *item.end(outcome.output, outcome.error)]
            # The history of the next request will identify the call by the ID of its item.
            call_id = item.id
        return events, (Call(call_id, shown, arguments), CallOutput(call_id, (Text(outcome.shown),)))

    def _refusal(self, decision: ApprovalDecision, asked: PendingApproval | None) -> str:
        """Return the text that tells the model why a call is not run after the client's decision, or "" if the call is
        run.
        """
        if not decision.approve:
            return f"{_NO} {decision.reason[:_MAX_WORDS]}".rstrip()
        if asked is None:
            return _STALE
        return "" if self._is_allowed_now(asked) else _WITHDRAWN

    def _is_allowed_now(self, asked: PendingApproval) -> bool:
        """Return whether an approved call may still be run. An approval can be pending for up to an hour.

        Meanwhile, the operator might have changed the tool lists, the MCP configuration file or the allowed hosts, and
        the client might have changed the tools that it allows.
        """
        if not self._catalog.permits(asked.server.label, asked.tool):
            return False
        now = next((server for server in self._servers.values() if server.endpoint == asked.server.endpoint), None)
        if now is None:
            # The client's earlier request named this server, but the current request does not.
            return self._hosting.runs_clients and engine().is_host_allowed(asked.server, self._hosting.hosts)
        # If the server failed to list its tools, the call is still made, because its result shows the problem.
        return now.label not in self._listed_by or asked.tool in self._catalog.names(now.label)

    # -- within a round --

    def take(self, event: ClientEvent) -> list[ClientEvent]:
        """Return the events to emit for an event of the round. The events of a call that toolsim runs are replaced with
        events of a hosted item.
        """
        match event:
            case CallStarted(kind="function" | "tool_search", namespace=None) if event.name in self.tools:
                self._open = (event, [])
                return []
            case CallDelta() if self._open is not None:
                self._open[1].append(event.text)
                return []
            case CallEnded() if self._open is not None:
                (started, arguments), self._open = self._open, None
                is_whole = event.status == "completed"
                return self._take(started.name, "".join(arguments)) if is_whole else []
            case TextDelta():
                self._words.append(event.text)
        return [event]

    def _take(self, shown: str, arguments: str) -> list[ClientEvent]:
        if (search := self._searches.get(shown)) is not None:
            call = search.item(arguments)
            is_shown, over = self._items.shows != "none", self._too_many()
            self._left -= 1
            self._pending.append(_Pending(call, shown, search, is_shown, outcome=over))
            return call.begin() if is_shown else []
        found = self._catalog.find(shown)
        assert found is not None
        if found.needs_approval and self._items.asks_approval and self._hosting.desk is None and self._left > 0:
            self._left -= 1
            self.is_waiting = True
            self._note("APPROVAL_REQUESTED", f"{found.server.label}.{found.tool.name}")
            name = self._hosting.approvals.ask(found.server, found.tool.name, shown, arguments, self._hosting.owner)
            return [mcp_items.approval_request(name, found.server.label, found.tool.name, arguments)]
        label = found.server.label
        is_shown = self._items.shows == "all" or (self._items.shows == "declared" and label in self._declared)
        item = self._items.mcp_call(label, found.tool.name, arguments)
        outcome = self._impossible(found)
        self._left -= 1
        self._pending.append(_Pending(item, shown, found.server, is_shown, found.needs_approval, outcome))
        return item.begin() if is_shown else []

    def _too_many(self) -> ToolOutcome | None:
        return failed("The limit of calls in one answer has been reached.", LIMIT) if self._left <= 0 else None

    def _impossible(self, found: HostedTool) -> ToolOutcome | None:
        if (over := self._too_many()) is not None:
            return over
        if found.needs_approval and self._hosting.desk is None:
            return failed(_NOBODY, REFUSED)
        return None

    # -- between rounds --

    async def run(self, body: Mapping[str, Any]) -> AsyncGenerator[ClientEvent]:
        """Run the calls of the finished round and yield their events. If the generator is closed early, the calls stop.

        ``body`` is the request of the finished round. Afterwards, ``self.body`` is the request for the next round.
        """
        pending, self._pending = self._pending, []
        tasks = [asyncio.create_task(self._outcome(call)) for call in pending]
        pairs: list[Called] = []
        try:
            for call, task in zip(pending, tasks, strict=True):
                outcome = await task
                if isinstance(call.by, Server):
                    output = CallOutput(call.item.id, (Text(outcome.shown),))
                    pairs.append((Call(call.item.id, call.shown, call.item.arguments), output))
                else:
                    pairs.append(call.by.called(call.item, outcome))
                if not call.is_shown:
                    self._hidden.append(pairs[-1])
                    continue
                for event in call.item.end(outcome.output, outcome.error, outcome.found):
                    yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        words, self._words = "".join(self._words)[:_MAX_WORDS], []
        if pairs:
            self.body = self._api.append_tool_results(body, words, pairs)
            if "tool_choice" in body:
                self.body = {**self.body, "tool_choice": mcp_items.after_calls(body["tool_choice"])}

    # -- client output --

    def emitted(self, event: ClientEvent) -> None:
        """Record an emitted event of the answer.

        At the answer's end, store the calls that were not shown to the client.
        """
        match event:
            case TextDelta():
                self._said.append(event.text)
            case CallStarted():
                self._shown.append((event.name, []))
            case CallDelta() if self._shown:
                self._shown[-1][1].append(event.text)
            case Ended() if self._hidden and (self._said or self._shown):
                calls = [(name, "".join(pieces)) for name, pieces in self._shown]
                answer = answer_key(self._conversation, "".join(self._said), calls)
                self._hosting.hidden.put(answer, self._hidden, self._hosting.owner)

    def next_round(self) -> None:
        """Discard the text and calls of the previous round."""
        self._words, self._pending, self._open = [], [], None

    async def _outcome(self, pending: _Pending) -> ToolOutcome:
        outcome, item, desk = pending.outcome, pending.item, self._hosting.desk
        if outcome is None and pending.needs_approval and desk is not None:
            question = ApprovalPrompt(self._answer, item.label, item.name, item.arguments)
            if not await desk.ask(question, self._hosting.patience):
                outcome = failed(_OPERATOR, REFUSED)
        if outcome is not None:
            self._note(outcome.code, f"{item.label}.{item.name}".removeprefix("."))
            return outcome
        if isinstance(pending.by, Server):
            return await self._called(pending.by, pending.item)
        outcome = await pending.by.run(item, parse_object(item.arguments.encode("utf-8", "replace")) or {})
        if pending.by.asks_server and outcome.output is not None and self._items.shows == "all":
            self._keep_results(item, outcome)
        if not pending.by.asks_server or outcome.code in (LIMIT, REFUSED):
            self._note(outcome.code, item.name)
        return outcome

    async def _called(self, server: Server, item: ServedCall) -> ToolOutcome:
        arguments = parse_object(item.arguments.encode("utf-8", "replace")) if item.arguments.strip() else {}
        if arguments is None:
            outcome = failed("The arguments are not a JSON object.")
        else:
            mcp_context, limit = self._hosting, self._policy.max_tool_bytes
            assert mcp_context.pool is not None
            calling = mcp_context.pool.call(server, item.name, arguments, limit, self._asker)
            outcome = await (calling if mcp_context.watch is None else mcp_context.watch(server, item, calling))
        self._note(outcome.code, f"{item.label}.{item.name}")
        return outcome

    def _note(self, code: str, name: str) -> None:
        self._report.mcp_calls.append(entry(code or "OK", name))


def leaves_searches(policy: Policy, api: Api) -> bool:
    """Return whether the backend, rather than toolsim, runs the searches that a request declares."""
    is_same = backend_of(api, policy.backend) is api
    return is_same and (policy.forward_hosted_tools or policy.mode == "native")


def _search_key(owner: str, query: str) -> bytes:
    return blake2b(dump(["web_search", owner, query]).encode("utf-8", "surrogatepass"), digest_size=32).digest()


def _names_mcp(body: Mapping[str, Any]) -> bool:
    return bool(body.get("mcp_servers")) or any(tool.get("type") == "mcp" for tool in mappings(body.get("tools")))


def _searches_tools(body: Mapping[str, Any], policy: Policy, api: Api) -> bool:
    """Return whether a request has deferred tools and declares a search for them that the proxy runs."""
    searches = any(kind == "tool_search" for _, kind, _ in search_tools(body))
    return searches and is_deferred(body) and not leaves_searches(policy, api)
