"""Tests for MCP calls that toolsim runs during an answer. Only the MCP servers and the model are simulated."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from openai.types.responses import Response
from support.answers import read
from support.emitted import BODIES, Emitted, Step
from support.rounds import Script, body_of, run
from support.wire import backend_answer
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.mcp.approvals import Approvals, OperatorApprovals
from toolsim.mcp.catalog import RemoteTool
from toolsim.mcp.outcome import ToolOutcome, failed
from toolsim.mcp.runtime import Caller
from toolsim.mcp.servers import Filter, Server
from toolsim.rounds.hidden_calls import HiddenCalls
from toolsim.rounds.hosted_calls import HostedCalls, McpContext
from toolsim.rounds.round_planner import RoundLimits
from toolsim.rounds.runner import RunnerJob
from toolsim.wire.apis import APIS
from toolsim.wire.mcp_items import McpCall

FREE, SHY = Server("free", ("x",), free=(Filter(),)), Server("shy", ("y",))
TOOLS = [RemoteTool("read", schema={"type": "object"}), RemoteTool("drop", schema={"type": "object"})]
API_NAMES: tuple[ApiName, ...] = ("chat", "responses")
SCHEMA = {"type": "object"}


def block(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Servers:
    """Simulated MCP servers. The output of a call repeats its tool and arguments. The server with the label ``gone``
    fails.
    """

    def __init__(self, gone: str = "") -> None:
        self.gone = gone
        self.calls: list[tuple[str, str, Mapping[str, Any]]] = []
        self.cancelled = 0
        self.pause = 0.0

    async def tools(self, server: Server, who: Caller) -> list[RemoteTool]:
        if server.label == self.gone:
            raise ConnectionError("It has gone.")
        return TOOLS

    async def call(
        self, server: Server, tool: str, arguments: Mapping[str, Any], limit: int, who: Caller
    ) -> ToolOutcome:
        self.calls.append((server.label, tool, arguments))
        try:
            await asyncio.sleep(self.pause)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return failed("It failed.") if tool == "drop" else ToolOutcome(f"{tool}: {dict(arguments)}")


APPROVALS = Approvals()


def job_of(
    script: Script,
    servers: Any,
    *,
    client: ApiName = "responses",
    stream: bool = False,
    policy: Policy | None = None,
    bounds: RoundLimits | None = None,
    mcp_context: dict[str, Any] | None = None,
    owner: str = "me",
    **more: Any,
) -> RunnerJob:
    api, body = APIS[client], body_of(client, stream, **more)
    policy = replace(policy or Policy(), backend=script.backend)
    report = Report()
    fields: dict[str, Any] = {"servers": {"free": FREE, "shy": SHY}, "approvals": APPROVALS, "owner": owner} | (
        mcp_context or {}
    )
    calls = HostedCalls(McpContext(servers, **fields), api, body, policy, report, "mine")
    ask = lambda each: script.ask(client, stream, each)  # noqa: E731
    return RunnerJob(api, body, api.read(body).form, policy, ask, bounds or RoundLimits(), report, hosted=calls)


def play(
    *texts: str | bytes | None, backend: ApiName = "chat", gone: str = "", **more: Any
) -> tuple[Any, Script, Any, RunnerJob]:
    """Play one turn. Return the answer that the client receives, the model's script, the MCP servers and the job."""
    script, servers = Script(texts, backend), Servers(gone)
    job = job_of(script, servers, **more)
    status, chunks = asyncio.run(run(job))
    data = b"".join(chunks)
    answer = data if job.form.stream or status != 200 else json.loads(data)
    return (status, answer) if status != 200 else answer, script, servers, job


def kinds(answer: Any) -> list[str]:
    Response.model_validate(answer)
    return [item["type"] for item in answer["output"]]


@pytest.mark.parametrize("backend", API_NAMES)
def test_call_is_run_and_answered(backend: ApiName) -> None:
    """The client receives the MCP servers' tool lists, the call with its output, and the model's answer. In the second
    round, the model sees the call and its output.
    """
    answer, script, servers, job = play("Well. " + block("free__read", a=1), "It is so.", backend=backend)
    assert kinds(answer) == ["mcp_list_tools", "mcp_list_tools", "message", "mcp_call", "message"]
    call, message = answer["output"][3:]
    assert (call["output"], call["status"], call["error"]) == ("read: {'a': 1}", "completed", None)
    assert message["content"][0]["text"] == "It is so."
    assert servers.calls == [("free", "read", {"a": 1})]
    *_, words, output = script.asked[1]
    assert "Well." in str(words)
    assert "free__read" in str(words)
    assert "read: {'a': 1}" in json.dumps(output).encode().decode("unicode_escape")
    assert (job.report.rounds, job.report.mcp_calls, job.report.calls) == (2, ["OK:free.read"], [])
    assert answer["usage"]["total_tokens"] == 14
    assert answer["tools"][0]["name"] == "add"
    assert len(answer["tools"]) == 2


def test_calls_can_be_watched() -> None:
    """A watcher receives each call that is run, with its MCP server, item ID and outcome. It does not receive calls
    that are not run.
    """
    seen: list[tuple[str, str, str, str]] = []

    async def watch(server: Server, call: McpCall, calling: Awaitable[ToolOutcome]) -> ToolOutcome:
        outcome = await calling
        seen.append((server.label, call.name, call.id, outcome.code))
        return outcome

    made = block("free__read", a=1) + block("free__drop") + block("shy__read")
    answer, *_ = play(made, "It is so.", client="chat", mcp_context={"watch": watch, "max_calls": 3})
    assert answer["choices"][0]["message"]["content"] == "It is so."
    assert [(label, name, code) for label, name, _, code in sorted(seen, key=lambda each: each[1])] == [
        ("free", "drop", "SERVER_FAILED"),
        ("free", "read", ""),
    ]
    assert len({call_id for _, _, call_id, _ in seen}) == 2


def test_tool_lists_come_first() -> None:
    """The client receives the MCP tool lists first, even if the backend's stream has no opening event."""
    _, stream = backend_answer("responses", True, ["It is so."])
    frames = [frame for frame in stream.split(b"\n\n") if b"response.created" not in frame]
    assert len(frames) < len(stream.split(b"\n\n"))
    answer, *_ = play(b"\n\n".join(frames), backend="responses")
    assert kinds(answer) == ["mcp_list_tools", "mcp_list_tools", "message"]


def test_mcp_call_needs_no_second_opinion() -> None:
    """An MCP call runs without a second opinion. A call to a client's tool in the same round still needs one, and is
    dropped if the opinion is negative.
    """
    policy = Policy(second_opinion="on")
    turn = block("echo", x=1) + block("free__read", a=1)
    answer, script, servers, job = play(turn, "no", "no", "It is so.", policy=policy)
    assert kinds(answer)[-2:] == ["mcp_call", "message"]
    assert len(servers.calls) == 1
    assert "A function: echo()" in str(script.asked[1])
    assert job.report.dropped_calls == ["SECOND_OPINION:echo"]
    answer, script, servers, _ = play(turn, "yes", policy=policy)
    assert (kinds(answer)[-2:], len(servers.calls)) == (["function_call", "mcp_call"], 1)
    answer, script, servers, _ = play(block("free__read", a=1), block("echo", x=1), policy=policy)
    assert kinds(answer)[-2:] == ["mcp_call", "function_call"]


@pytest.mark.parametrize("stream", [True, False])
def test_chat_client_receives_only_text(stream: bool) -> None:
    """A chat completions client receives the text of all rounds as paragraphs, but not the MCP calls."""
    answer, script, servers, _ = play("Well. " + block("free__read", a=1), "It is so.", client="chat", stream=stream)
    if stream:
        deltas = [json.loads(line[6:]) for line in answer.decode().split("\n") if line.startswith("data: {")]
        choices = [choice for each in deltas for choice in each["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert choices[-1]["finish_reason"] == "stop"
        assert "tool_calls" not in answer.decode()
    else:
        text = answer["choices"][0]["message"]["content"]
        assert answer["choices"][0]["message"].get("tool_calls") is None
    assert text == "Well. \n\nIt is so."
    assert len(servers.calls) == 1
    assert "free__read" in str(script.asked[1])


def test_next_chat_turn_includes_hidden_calls() -> None:
    """Chat completions clients do not see MCP calls. In the next turn of the same owner, the model nevertheless sees
    the calls and their outputs. In a turn of another owner, the model does not see them.
    """
    mcp_context = {"hidden": HiddenCalls()}
    text = "Well. " + block("free__read", a=1) + block("echo", b=2)
    answer, _, _, _ = play(text, client="chat", mcp_context=mcp_context)
    message = answer["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["echo"]
    output = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "two"}
    history = [{"role": "user", "content": "hi"}, message, output]
    for owner, known in (("me", True), ("you", False)):
        more: Any = {"client": "chat", "mcp_context": mcp_context, "messages": history, "owner": owner}
        _, script, servers, _ = play("Done.", **more)
        shown = json.dumps(script.asked[0])
        assert ("free__read" in shown.partition("CATALOG")[2].partition("user")[2]) == known
        assert ("read: {" in shown) == known
        assert servers.calls == []


def test_similar_chats_do_not_share_hidden_calls() -> None:
    """Chats that begin with the same question are distinguished by the model's answers. If the client changes one of
    those answers, no hidden calls are found.
    """
    mcp_context = {"hidden": HiddenCalls()}
    for number in (1, 2):
        play(block("free__read", a=number), f"It is {number}.", client="chat", mcp_context=mcp_context)
    for said, expected in (("It is 1.", ["1"]), ("It is 2.", ["2"]), ("It is 3.", []), ("", []), (None, [])):
        history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": said}]
        history.append({"role": "user", "content": "And?"})
        _, script, _, _ = play("Done.", client="chat", mcp_context=mcp_context, messages=history)
        assert re.findall(r"read: {\W+a\W+(\d)}", json.dumps(script.asked[0])) == expected


def test_streamed_answer_equals_the_non_streamed() -> None:
    """The items in a streamed answer equal the items in the non-streamed answer, except for their IDs."""
    texts = ("Well. " + block("free__read", a=1) + block("free__drop"), "It is so.")
    whole = play(*texts)[0]["output"]
    data = play(*texts, stream=True)[0].decode()
    final = [json.loads(line[6:]) for line in data.split("\n") if line.startswith("data: {")][-1]["response"]["output"]

    def bare(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in item.items() if name != "id"} for item in items]

    assert bare(whole) == bare(final)


def test_mcp_and_client_calls_share_a_round() -> None:
    """If a round contains both an MCP call and a call to a client's tool, the MCP call is run, and the client's call
    ends the answer. The history of the next request contains both calls.
    """
    text = block("free__read", a=1) + block("echo", b=2)
    answer, script, _, _ = play(text)
    assert kinds(answer)[2:] == ["mcp_call", "function_call"]
    assert answer["output"][2]["output"] == "read: {'a': 1}"
    assert len(script.asked) == 1
    history = [{"role": "user", "content": "hi"}, *answer["output"]]
    history.append({"type": "function_call_output", "call_id": answer["output"][3]["call_id"], "output": "two"})
    answer, script, servers, _ = play("Done.", input=history)
    assert kinds(answer) == ["message"]
    assert servers.calls == []
    assert "read: {'a': 1}" in json.dumps(script.asked[0]).encode().decode("unicode_escape").replace("\\", "")
    assert "two" in str(script.asked[0])


def test_approval_requests_count_toward_the_limit() -> None:
    """Requests for approval count toward the limit on calls. Calls over the limit fail."""
    texts = "".join(block("shy__read", a=number) for number in range(40))
    answer, _, servers, job = play(texts, mcp_context={"max_calls": 3})
    assert kinds(answer)[2:] == ["mcp_approval_request"] * 3 + ["mcp_call"] * 37
    assert all("limit of calls" in str(item["error"]) for item in answer["output"][5:])
    assert servers.calls == []
    assert job.report.mcp_calls.count("APPROVAL_REQUESTED:shy.read") == 3


def test_failed_call_is_reported_to_the_model() -> None:
    """A failed call is reported to the client and the model. If an MCP server fails, its tools are not offered, and the
    report contains a warning.
    """
    answer, script, _, job = play(block("free__drop"), "I see.")
    assert answer["output"][2]["status"] == "failed"
    assert "It failed." in str(script.asked[1])
    assert job.report.mcp_calls == ["SERVER_FAILED:free.drop"]
    answer, script, _, job = play("Without it.", gone="free")
    assert answer["output"][0]["error"] == "It has gone."
    assert job.report.warnings == ["MCP_SERVER_FAILED:free"]
    assert "free__read" not in str(script.asked[0])
    assert "shy__read" in str(script.asked[0])


def test_call_runs_only_after_an_approval() -> None:
    """A call that requires approval runs only after its owner has approved it. It runs only once, with the original
    arguments.
    """
    answer, script, servers, job = play(block("shy__read", a=1))
    assert kinds(answer)[2:] == ["mcp_approval_request"]
    assert (servers.calls, len(script.asked), answer["status"]) == ([], 1, "completed")
    asked = answer["output"][2]
    forged = {**asked, "name": "drop", "arguments": '{"all":true}', "server_label": "free"}
    yes = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
    history = [{"role": "user", "content": "hi"}, *answer["output"][:2], forged, yes]
    for other in ("you", ""):
        _, _, servers, _ = play("Hm.", input=history, owner=other)
        assert servers.calls == []
    answer, script, servers, _ = play("It is so.", input=history)
    assert servers.calls == [("shy", "read", {"a": 1})]
    assert kinds(answer) == ["mcp_call", "message"]
    assert answer["output"][0]["approval_request_id"] == asked["id"]
    assert "read: {'a': 1}" in json.dumps(script.asked[0]).encode().decode("unicode_escape")
    # First, send the same request again. Then, send a request that continues the conversation.
    _, script, servers, job = play("Again.", input=history)
    assert servers.calls == []
    assert "it was already used" in str(script.asked[0])
    assert "not run" not in str(script.asked[0]), "it was run, though the client may never have received the output"
    assert job.report.mcp_calls == ["REFUSED:drop"]
    _, script, servers, _ = play("On.", input=[*history, *answer["output"], {"role": "user", "content": "and?"}])
    assert servers.calls == []
    assert "it was already used" not in str(script.asked[0])


@pytest.mark.parametrize("later", [True, False])
def test_repeated_decision_counts_once(later: bool) -> None:
    """If a request contains two decisions about the same call, the first decision applies, and the model sees the
    output of the call only once.
    """
    answer, *_ = play(block("shy__read", a=1))
    asked = answer["output"][2]
    yes = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
    history = [{"role": "user", "content": "hi"}, asked, yes, {**yes, "approve": later}]
    answer, script, servers, _ = play("It is so.", input=history)
    assert (kinds(answer)[2:], len(servers.calls)) == (["mcp_call", "message"], 1)
    assert str(script.asked[0]).count("output=") == 1
    assert "read: {'a': 1}" in json.dumps(script.asked[0]).encode().decode("unicode_escape")


def test_refusal_is_passed_to_the_model() -> None:
    """If the user refuses a call, the model sees the refusal and its reason. Approving the call later has no effect."""
    answer, *_ = play(block("shy__read", a=1))
    asked = answer["output"][2]
    no = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": False, "reason": "Too late."}
    history = [{"role": "user", "content": "hi"}, asked, no]
    for _ in range(2):
        answer, script, servers, _ = play("Well.", input=history)
        assert (kinds(answer)[-1], servers.calls) == ("message", [])
        assert "The user refused this call. Too late." in str(script.asked[0])
    _, _, servers, _ = play("Well.", input=[history[0], asked, {**no, "approve": True}])
    assert servers.calls == []


@pytest.mark.parametrize(
    "withdrawn",
    [
        {"policy": Policy(tool_denylist=frozenset({"read"}))},
        {"mcp_context": {"servers": {"free": FREE}}},
        {"mcp_context": {"servers": {"shy": replace(SHY, allowed=(Filter(frozenset({"write"})),))}}},
    ],
    ids=["denied", "no such server", "no longer among the server's allowed tools"],
)
def test_permissions_are_checked_when_a_call_runs(withdrawn: dict[str, Any]) -> None:
    """The operator can withdraw a permission while a call awaits approval. The permissions are therefore checked again
    before the approved call runs.
    """
    answer, *_ = play(block("shy__read", a=1))
    asked = answer["output"][2]
    yes = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
    history = [{"role": "user", "content": "hi"}, asked, yes]
    answer, script, servers, job = play("Well.", input=history, **withdrawn)
    assert (kinds(answer)[-1], servers.calls) == ("message", [])
    assert "no longer allowed" in str(script.asked[0])
    assert job.report.mcp_calls == ["REFUSED:read"]


@pytest.mark.parametrize(("hosts", "runs"), [(("docs.example",), 1), (("other.example",), 0)])
def test_host_must_still_be_allowed_when_a_call_runs(hosts: tuple[str, ...], runs: int) -> None:
    """If the request itself declared the MCP server, an approved call runs only if the operator still allows the
    server's host.
    """
    brought = {"type": "mcp", "server_label": "docs", "server_url": "https://docs.example/mcp"}
    mcp_context = {"runs_clients": True, "hosts": ("docs.example",)}
    answer, *_ = play(block("docs__read", a=1), tools=[brought], mcp_context=mcp_context)
    asked = next(item for item in answer["output"] if item["type"] == "mcp_approval_request")
    yes = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
    history = [{"role": "user", "content": "hi"}, asked, yes]
    _, _, servers, _ = play("Well.", input=history, mcp_context={**mcp_context, "hosts": hosts})
    assert len(servers.calls) == runs


def test_unknown_approval_is_a_400() -> None:
    """If a client approves or refuses an unknown approval request, it receives status 400."""
    no = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    (status, data), script, _, _ = play("Well.", input=[{"role": "user", "content": "hi"}, no])
    assert (status, script.asked) == (400, [])
    assert json.loads(data)["error"]["param"] == "input[1].approval_request_id"


def test_chat_client_cannot_approve() -> None:
    """A chat completions client cannot approve calls. A call that requires approval is not run, and the model sees the
    reason.
    """
    answer, script, servers, _ = play(block("shy__read"), "Then not.", client="chat")
    assert answer["choices"][0]["message"]["content"] == "Then not."
    assert servers.calls == []
    assert "needs approval" in str(script.asked[1])


@pytest.mark.parametrize("client", API_NAMES)
@pytest.mark.parametrize("approve", [True, False, None])
def test_operator_decides_during_the_answer(approve: bool | None, client: ApiName) -> None:
    """With either API, the answer waits for the operator's decision about a call. The call runs only if the operator
    approves it before the timeout.
    """

    async def answered() -> tuple[Servers, Script]:
        desk, servers = OperatorApprovals(), Servers()
        script = Script([block("shy__read", a=1), "Well."], "chat")
        job = job_of(script, servers, client=client, mcp_context={"desk": desk, "patience": 0.5})
        task = asyncio.create_task(run(job))
        while not (waiting := desk.waiting("mine")):
            await asyncio.sleep(0.01)
        assert [(each.label, each.tool, each.arguments) for each in waiting] == [("shy", "read", '{"a": 1}')]
        assert servers.calls == []
        if approve is not None:
            desk.decide("mine", approve=approve)
        status, _ = await task
        assert status == 200
        return servers, script

    servers, script = asyncio.run(answered())
    assert servers.calls == ([("shy", "read", {"a": 1})] if approve else [])
    assert ("The operator refused this call" in str(script.asked[1])) != bool(approve)


def test_last_round_forbids_calls() -> None:
    """In the last round, tools are forbidden, so that the model has to answer. The number of calls is also limited."""
    call = block("free__read")
    answer, script, servers, job = play(call, call, "Enough.", bounds=RoundLimits(rounds=3))
    assert len(servers.calls) == 2
    assert "CATALOG" in str(script.asked[1])
    assert "You may call no tool" in str(script.asked[2][-1])
    assert answer["output"][-1]["content"][0]["text"] == "Enough."
    _, script, servers, job = play(call * 5, "Enough.", mcp_context={"max_calls": 3})
    assert len(servers.calls) == 3
    assert sorted(job.report.mcp_calls) == ["LIMIT:free.read"] * 2 + ["OK:free.read"] * 3
    _, _, servers, _ = play(call * 5, "Enough.", max_tool_calls=2)
    assert len(servers.calls) == 2


@pytest.mark.parametrize("choice", ["required", {"type": "mcp", "server_label": "free", "name": "read"}])
def test_required_call_is_made_once(choice: Any) -> None:
    """A client's requirement to call a tool applies only until a call has been run. Afterward, the model can answer
    with text.
    """
    _, script, servers, _ = play(block("free__read"), "So.", tool_choice=choice)
    assert len(servers.calls) == 1
    assert ["You MUST call" in str(asked) for asked in script.asked] == [True, False]


def test_denied_server_tool_is_not_run() -> None:
    """If the operator has denied a tool on an MCP server, it is neither shown to the model nor run."""
    policy = Policy(tool_denylist=frozenset({"free__drop"}))
    answer, script, _, _ = play("Well.", policy=policy)
    assert "free__drop" not in str(script.asked[0])
    assert [tool["name"] for tool in answer["output"][0]["tools"]] == ["read"]
    (status, data), _, servers, _ = play(block("free__drop"), policy=policy)
    assert (status, servers.calls) == (422, [])
    assert b"MASKED_TOOL" in data


@pytest.mark.parametrize("denied", ["drop", "free__drop"])
@pytest.mark.parametrize("backend", API_NAMES)
def test_call_of_a_denied_server_tool_is_not_passed_on(denied: str, backend: ApiName) -> None:
    """A structured call to a denied MCP tool is neither run nor sent to the client. The denylist can contain the name
    of the tool with or without its prefix.
    """
    policy = Policy(tool_denylist=frozenset({denied}), unknown_tool="call")
    stream = BODIES[backend]([Emitted("free__drop", "{}")], "tool_calls")
    lax = [{"type": "function", "name": "echo", "parameters": SCHEMA}]
    answer, _, servers, job = play(stream, backend=backend, policy=policy, tools=lax)
    assert kinds(answer)[2:] == ["message"]
    assert (servers.calls, job.report.calls) == ([], [])


def test_allowlist_accepts_original_tool_names() -> None:
    """The allowlist can contain the original name of an MCP tool instead of the prefixed name that the model sees."""
    policy = Policy(tool_allowlist=frozenset({"read"}))
    _, script, servers, _ = play(block("free__read"), "Well.", policy=policy)
    assert "free__read" in str(script.asked[0])
    assert "free__drop" not in str(script.asked[0])
    assert servers.calls == [("free", "read", {})]


def test_renamed_server_tool_keeps_its_name() -> None:
    """If the name of an MCP tool was already taken, the tool is renamed. Its calls keep the new name in the history, so
    that they are not mistaken for calls to the client's function.
    """
    tools = [{"type": "function", "name": name, "parameters": SCHEMA} for name in ("free__read", "shy__gone")]
    answer, script, *_ = play(block("free__read_2", a=1), "It is so.", tools=tools)
    shown = script.asked[1][-2]["content"]
    assert '"free__read_2"' in shown
    gone = {"type": "mcp_call", "id": "mcp_1", "server_label": "shy", "name": "gone", "arguments": "{}", "output": "x"}
    history = [{"role": "user", "content": "hi"}, *answer["output"], {"role": "user", "content": "and?"}, gone]
    _, script, *_ = play("On.", input=history, tools=tools)
    assert shown in str(script.asked[0])
    assert '"free__read"' not in str(script.asked[0][1:])
    assert '"shy__gone_2"' in str(script.asked[0])


def test_server_in_the_request_is_used() -> None:
    """A request can declare an MCP server on a host that the operator allows. The tools of the server are run, and its
    secrets do not appear in the answer.
    """
    mine = {"type": "mcp", "server_label": "mine", "server_url": "https://docs.example/k3y"}
    tools = [{**mine, "headers": {"X-Own": "s3cret"}, "require_approval": "never"}]
    mcp_context = {"runs_clients": True, "hosts": ("docs.example",)}
    answer, script, servers, _ = play(block("mine__read"), "So.", tools=tools, mcp_context=mcp_context)
    assert servers.calls == [("mine", "read", {})]
    assert "s3cret" not in json.dumps(answer) + str(script.asked)
    assert "k3y" not in json.dumps(answer) + str(script.asked)
    (status, data), script, _, _ = play("Well.", tools=tools, mcp_context={**mcp_context, "hosts": ()})
    assert (status, script.asked) == (400, [])
    assert json.loads(data)["error"]["param"] == "tools[0].server_url"


def test_failed_round_ends_the_answer() -> None:
    """If a round fails, the answer ends with the backend's error, even if earlier output has already been sent."""
    (status, data), _, servers, _ = play(block("free__read"), None)
    assert (status, len(servers.calls)) == (503, 1)
    assert json.loads(data)["error"]["type"] == "server_error"
    streamed, _, _, _ = play(block("free__read"), None, stream=True)
    assert b"response.failed" in streamed
    (status, _), *_ = play(None)
    assert status == 503


def test_invalid_call_next_to_a_valid_one_is_not_retried() -> None:
    """If a round contains an invalid call and a valid MCP call, there is no separate retry of the invalid call. The
    next round shows the output of the valid call.
    """
    bad = block("add", a="x")
    answer, script, servers, _ = play(block("free__read") + bad, "So.", policy=Policy(retry=2))
    assert len(servers.calls) == 1
    assert kinds(answer)[-1] == "message"
    assert "SCHEMA_MISMATCH" not in str(script.asked[1])
    assert len(script.asked) == 2


def test_client_disconnect_cancels_running_calls() -> None:
    async def leave() -> Servers:
        servers = Servers()
        servers.pause = 60
        job = job_of(Script([block("free__read") * 3, "So."], "chat"), servers)
        task = asyncio.create_task(run(job))
        while len(servers.calls) < 3:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return servers

    assert asyncio.run(leave()).cancelled == 3


STREAMED = Policy(stream_arguments="incremental")
READ, ECHO = Emitted("free__read", '{"a":1}'), Emitted("echo", '{"text":"hello"}')
SLIP = Emitted("free__read", '{"a":1,}')
SLIP_IN_TEXT = '<tool_call>{"name":"free__read","arguments":{"a":1,}}</tool_call>'


@pytest.mark.parametrize("client", API_NAMES)
@pytest.mark.parametrize("backend", API_NAMES)
def test_incremental_mcp_calls_run_when_complete(client: ApiName, backend: ApiName) -> None:
    """If arguments are streamed incrementally, an MCP call runs as soon as it is complete. Calls to the client's tools
    are still streamed.
    """
    for steps in ([READ], ["Well. ", SLIP], [READ, ECHO], [ECHO, SLIP], [SLIP_IN_TEXT]):
        stream, seen = BODIES[backend](steps, "tool_calls"), []
        for policy in (Policy(), STREAMED):
            data, script, servers, job = play(stream, "So.", client=client, backend=backend, stream=True, policy=policy)
            assert servers.calls == [("free", "read", {"a": 1})]
            asked = re.sub("(call|mcp)_[0-9a-f]+", "", json.dumps(script.asked))
            seen.append((read(client, True, [data]), asked, job.report.calls))
        assert seen[0] == seen[1]
        pieces = data.count(b'"response.function_call_arguments.delta"') + data.count(b'"function":{"arguments"')
        assert (pieces > 3) == (ECHO in steps and (backend == "responses" or steps[0] is ECHO))


@pytest.mark.parametrize("client", API_NAMES)
@pytest.mark.parametrize("backend", API_NAMES)
def test_broken_client_call_makes_the_answer_incomplete(client: ApiName, backend: ApiName) -> None:
    """If a call to a client's tool breaks off after its beginning has been sent, the outputs of MCP calls are still
    sent, and the answer ends as incomplete.
    """
    broken = '<tool_call>{"name":"echo","arguments":{"text":"hel'
    emitted: list[Step] = [READ, Emitted("echo", '{"text":"hel')]
    # With a chat completions backend, only the beginning of the first call is sent before the call is complete.
    for steps in ([block("free__read", a=1), broken], emitted)[: 1 if backend == "chat" else 2]:
        stream = BODIES[backend](steps, "length")
        data, _, servers, _ = play(stream, "So.", client=client, backend=backend, stream=True, policy=STREAMED)
        assert servers.calls == [("free", "read", {"a": 1})]
        assert read(client, True, [data]).finish in ("length", "incomplete")
