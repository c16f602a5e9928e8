"""The MCP tools of one answer: listed before it, shown to the model as functions, run between its rounds.

    prepare ─▶ round ─▶ run ─▶ round ─▶ … ─▶ a round without such calls

1. The rounds are requests with functions only (``wire/mcp_items.py``): this module knows which of them are MCP tools.
2. A call is announced when it is whole, and run when its round is over; the model is shown its own words, the calls and
   their outputs, and asked again. The calls of one round run concurrently.
3. If the same round has calls of the client's functions, the answer ends after the outputs of ours. It also ends at a
   call that needs approval: its item asks for it, and nothing runs until the next request brings the decision. If the
   operator decides, the answer waits for that instead.
4. If a call cannot be made, or fails, the model gets the error in words. No answer fails because of a server.
5. If a client is shown no calls, they are still inserted into the history of its next request (``hidden.py``).
6. The last round that the bounds allow is offered no tools, so that the model answers in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolsim.core.conversation import Call, Called, CallOutput, Text
from toolsim.core.errors import BadRequest
from toolsim.core.events import CallDelta, CallEnded, CallStarted, ClientEvent, Ended, TextDelta
from toolsim.core.plan import Policy
from toolsim.core.report import Report, entry
from toolsim.mcp.approvals import Approvals, Asked, Desk, Question
from toolsim.mcp.catalogue import Catalogue, HostedTool
from toolsim.mcp.outcome import LIMIT, REFUSED, Outcome, failed
from toolsim.mcp.runtime import Asker, Pool, engine
from toolsim.mcp.servers import Server
from toolsim.rounds.hidden import Hidden
from toolsim.wire import mcp_items
from toolsim.wire.api import Api
from toolsim.wire.hidden import answer_key, whole_key, with_hidden
from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.json_fields import count, string
from toolsim.wire.mcp_items import Decision, McpCall
from toolsim.wire.tools import read_tools

_MAX_WORDS = 65_536
"""How many characters of its own words the model is shown again."""
_NO = "The user refused this call."
# If it was used, the call has been run: a client that got an error instead of the answer sends its approval again.
_STALE = "This approval is not known here: it was used already, has expired or was never asked for. Nothing is run now."
_WITHDRAWN = "This call is no longer allowed here. It was not run."
_OPERATOR = "The operator refused this call, or was not there to allow it. It was not run."
_NOBODY = "This call needs a yes, which nobody can give here. It was not run."


Watch = Callable[[Server, McpCall, Awaitable[Outcome]], Awaitable[Outcome]]
"""Makes a call of a server's tool, which is awaited, and returns its outcome."""


@dataclass(frozen=True, slots=True)
class Hosting:
    """The operator's settings for MCP servers, and who uses them. ``servers``: those of the file, by label.

    ``hidden``: calls that clients were not shown. ``owner``: the client, as a digest of its key.
    """

    pool: Pool
    approvals: Approvals
    servers: Mapping[str, Server] = field(default_factory=dict)
    runs_clients: bool = False
    """Whether a request may name its own servers."""
    hosts: tuple[str, ...] = ()
    max_calls: int = 32
    hidden: Hidden = field(default_factory=Hidden)
    owner: str = ""
    desk: Desk | None = None
    """Where the operator decides instead of clients."""
    patience: float = 120.0
    """How many seconds the operator may take."""
    watch: Watch | None = None
    """Who sees each call that is made."""

    @property
    def marks(self) -> tuple[bytes, ...]:
        """One of which is in the body of each request that may concern MCP."""
        if self.servers:
            return (b"",)
        return (b'"mcp',) if self.runs_clients else ()

    def is_asked(self, body: bytes) -> bool:
        """Return whether a request may concern MCP, judging by its bytes."""
        return any(mark in body for mark in self.marks)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A call that was announced. ``needs_approval``: by the operator. ``outcome``: that of a call that is not made."""

    item: McpCall
    shown: str
    server: Server
    needs_approval: bool = False
    outcome: Outcome | None = None


class HostedCalls:
    """The MCP tools of one request. ``answer``: the client's flow, by its id. ``body``: the next round's request."""

    def __init__(
        self,
        hosting: Hosting,
        api: Api,
        body: Mapping[str, Any],
        policy: Policy,
        report: Report,
        answer: str = "",
    ) -> None:
        self._hosting = hosting
        self._api = api
        self._policy = policy
        self._answer = answer
        self._asker = Asker(hosting.owner, answer)
        # With the servers that it named: their outputs are only for those who may use them.
        self._whose = hosting.owner + dump([tool for _, tool in mcp_items.declared(body)])
        self._conversation = b""
        self._ran: list[Called] = []
        # What the client has got: words, and its own calls (name, pieces of the arguments).
        self._said: list[str] = []
        self._shown: list[tuple[str, list[str]]] = []
        self._report = report
        self._servers: dict[str, Server] = {}
        self._catalogue = Catalogue(())
        self._listed_by: set[str] = set()
        """The labels of the servers that have listed their tools."""
        limit = count(body, "max_tool_calls")
        self._left = min(hosting.max_calls, limit) if limit > 0 else hosting.max_calls
        self._open: tuple[CallStarted, list[str]] | None = None
        self._words: list[str] = []
        self._pending: list[_Pending] = []
        self.is_waiting = False
        """Whether the client has to decide something before the answer continues."""
        self.body = body

    @property
    def has_work(self) -> bool:
        """Whether the round that is over holds calls that we run, or that wait for approval."""
        return bool(self._pending) or self.is_waiting

    @property
    def tools(self) -> frozenset[str]:
        """The names of the functions that stand for MCP tools in the rounds."""
        return self._catalogue.shown

    # -- before the first round

    async def prepare(self) -> list[ClientEvent]:
        """Ask the servers for their tools, and run approved calls; return their events. Raises BadRequest."""
        body, hosting = self.body, self._hosting
        self._servers = dict(hosting.servers)
        if hosting.runs_clients:
            for param, declared in mcp_items.declared(body):
                server = engine().read_tool(declared, param, hosting.servers, hosting.hosts)
                self._servers[server.label] = server
        decisions = mcp_items.decisions(body)
        names = [tool.name for tool in read_tools(body)[0]]
        self._catalogue = Catalogue(names, self._policy.tool_allowlist, self._policy.tool_denylist)
        emitted = await self._listed(mcp_items.listed(body))
        if not self._api.shows_hosted:
            self._conversation = whole_key(body, self._whose)
            body = with_hidden(body, self._whose, hosting.hidden.find, self._api)
        decided: dict[str, Called] = {}
        for decision in decisions:
            events, pair = await self._decided(decision)
            emitted += events
            decided[decision.id] = pair
        functions = self._catalogue.functions()
        self.body = mcp_items.as_functions(body, functions, self._catalogue.name, self._is_ours, decided)
        if "tool_choice" in body:
            choice = mcp_items.choice_of_functions(body["tool_choice"], self._catalogue.names)
            self.body = {**self.body, "tool_choice": choice}
        return emitted if self._api.shows_hosted else []

    @property
    def policy(self) -> Policy:
        """How the rounds are treated.

        What a model writes after a call whose output it has not seen is invented. And the operator's lists may know
        MCP tools by their own names, not by those that the model is shown.
        """
        policy = replace(self._policy, tool_denylist=self._policy.tool_denylist | self._catalogue.masked)
        if policy.stop_after_tools == "auto" and self._catalogue:
            policy = replace(policy, stop_after_tools="on")
        if policy.tool_allowlist:
            policy = replace(policy, tool_allowlist=policy.tool_allowlist | self._catalogue.shown)
        return policy

    async def _listed(self, known: set[str]) -> list[ClientEvent]:
        """List the tools of all servers, concurrently; return the events of servers that are not ``known``."""
        servers = list(self._servers.values())
        asked = [self._hosting.pool.tools(server, self._asker) for server in servers]
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
                offered = self._catalogue.add(server, answer)
                self._listed_by.add(server.label)
            if server.label not in known:
                emitted += mcp_items.list_events(server.label, [tool.listed() for tool in offered], error)
        return emitted

    def _is_ours(self, label: str) -> bool:
        return label in self._servers or self._hosting.runs_clients

    async def _decided(self, decision: Decision) -> tuple[list[ClientEvent], Called]:
        """Run a call if it was approved; return its events, and what the model is shown."""
        asked = self._hosting.approvals.take(decision.id, self._hosting.owner)
        if asked is None and not decision.asked:
            message = f"Approval request '{decision.id[:80]}' not found."
            raise BadRequest(message, decision.param, "invalid_value")
        label, name = string(decision.asked.get("server_label")), string(decision.asked.get("name"))
        shown, arguments = self._catalogue.name(label, name), string(decision.asked.get("arguments"))
        if asked is not None:  # What is echoed of it may be forged.
            name, shown, arguments = asked.tool, asked.shown, asked.arguments
        events: list[ClientEvent] = []
        call_id = decision.id
        refusal = self._refusal(decision, asked)
        if asked is None or refusal:
            outcome = failed(refusal, REFUSED)
            self._note("REFUSED", name)
        else:
            item = McpCall(mcp_items.new_call_id(), asked.server.label, name, arguments, decision.id)
            outcome = await self._called(asked.server, item)
            events = [*item.begin(), *item.end(outcome.output, outcome.error)]
            # The id of the call in the history of the next request.
            call_id = item.id
        return events, (Call(call_id, shown, arguments), CallOutput(call_id, (Text(outcome.shown),)))

    def _refusal(self, decision: Decision, asked: Asked | None) -> str:
        """Return why a call that was decided on is not run, in words for the model; "" if it is."""
        if not decision.approve:
            return f"{_NO} {decision.reason[:_MAX_WORDS]}".rstrip()
        if asked is None:
            return _STALE
        return "" if self._is_allowed_now(asked) else _WITHDRAWN

    def _is_allowed_now(self, asked: Asked) -> bool:
        """Return whether a call may still be run: an approval waits for up to an hour.

        Since then the operator may have changed the lists, the file of servers or the hosts, and the client the tools
        that it allows.
        """
        if not self._catalogue.permits(asked.server.label, asked.tool):
            return False
        now = next((server for server in self._servers.values() if server.endpoint == asked.server.endpoint), None)
        if now is None:
            # The client had named the server, and does not name it again.
            return self._hosting.runs_clients and engine().may_be_named(asked.server, self._hosting.hosts)
        # A server that did not list its tools just now says itself what is wrong when it is called.
        return now.label not in self._listed_by or asked.tool in self._catalogue.names(now.label)

    # -- within a round

    def take(self, event: ClientEvent) -> list[ClientEvent]:
        """Return what is emitted for an event of the round: a call that we run becomes an MCP item."""
        match event:
            case CallStarted(kind="function", namespace=None) if self._catalogue.find(event.name) is not None:
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
        found = self._catalogue.find(shown)
        assert found is not None
        if found.needs_approval and self._api.shows_hosted and self._hosting.desk is None and self._left > 0:
            self._left -= 1
            self.is_waiting = True
            self._note("APPROVAL_REQUESTED", f"{found.server.label}.{found.tool.name}")
            name = self._hosting.approvals.ask(found.server, found.tool.name, shown, arguments, self._hosting.owner)
            return [mcp_items.approval_request(name, found.server.label, found.tool.name, arguments)]
        item = McpCall(mcp_items.new_call_id(), found.server.label, found.tool.name, arguments)
        outcome = self._impossible(found)
        self._left -= 1
        self._pending.append(_Pending(item, shown, found.server, found.needs_approval, outcome))
        return item.begin() if self._api.shows_hosted else []

    def _impossible(self, found: HostedTool) -> Outcome | None:
        if self._left <= 0:
            return failed("The limit of calls in one answer has been reached.", LIMIT)
        if found.needs_approval and self._hosting.desk is None:
            return failed(_NOBODY, REFUSED)
        return None

    # -- between rounds

    async def run(self, body: Mapping[str, Any]) -> AsyncGenerator[ClientEvent]:
        """Run the calls of the round that is over; yield their events. Closing the generator early stops them.

        ``body``: the request of that round; afterwards ``self.body`` is that of the next one.
        """
        pending, self._pending = self._pending, []
        tasks = [asyncio.create_task(self._outcome(call)) for call in pending]
        pairs: list[Called] = []
        try:
            for call, task in zip(pending, tasks, strict=True):
                outcome = await task
                output = CallOutput(call.item.id, (Text(outcome.shown),))
                pairs.append((Call(call.item.id, call.shown, call.item.arguments), output))
                if self._api.shows_hosted:
                    for event in call.item.end(outcome.output, outcome.error):
                        yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        words, self._words = "".join(self._words)[:_MAX_WORDS], []
        if pairs:
            self._ran += pairs
            self.body = self._api.append_tool_results(body, words, pairs)
            if "tool_choice" in body:
                self.body = {**self.body, "tool_choice": mcp_items.after_calls(body["tool_choice"])}

    # -- what the client gets

    def emitted(self, event: ClientEvent) -> None:
        """Note an event of the answer; at its end, store the calls that the client was not shown."""
        match event:
            case TextDelta():
                self._said.append(event.text)
            case CallStarted():
                self._shown.append((event.name, []))
            case CallDelta() if self._shown:
                self._shown[-1][1].append(event.text)
            case Ended() if self._ran and (self._said or self._shown) and not self._api.shows_hosted:
                calls = [(name, "".join(pieces)) for name, pieces in self._shown]
                answer = answer_key(self._conversation, "".join(self._said), calls)
                self._hosting.hidden.put(answer, self._ran, self._hosting.owner)

    def next_round(self) -> None:
        """Forget what a round collected that is asked again."""
        self._words, self._pending, self._open = [], [], None

    async def _outcome(self, pending: _Pending) -> Outcome:
        outcome, item, desk = pending.outcome, pending.item, self._hosting.desk
        if outcome is None and pending.needs_approval and desk is not None:
            question = Question(self._answer, item.label, item.name, item.arguments)
            if not await desk.ask(question, self._hosting.patience):
                outcome = failed(_OPERATOR, REFUSED)
        if outcome is not None:
            self._note(outcome.code, f"{item.label}.{item.name}")
            return outcome
        return await self._called(pending.server, pending.item)

    async def _called(self, server: Server, item: McpCall) -> Outcome:
        arguments = parse_object(item.arguments.encode("utf-8", "replace")) if item.arguments.strip() else {}
        if arguments is None:
            outcome = failed("The arguments are not a JSON object.")
        else:
            hosting, limit = self._hosting, self._policy.max_tool_output_bytes
            calling = hosting.pool.call(server, item.name, arguments, limit, self._asker)
            outcome = await (calling if hosting.watch is None else hosting.watch(server, item, calling))
        self._note(outcome.code, f"{item.label}.{item.name}")
        return outcome

    def _note(self, code: str, name: str) -> None:
        self._report.mcp_calls.append(entry(code or "OK", name))
