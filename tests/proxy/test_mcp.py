"""Tests with real MCP servers and SDKs, and with chat completions and Responses API backends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from memory.test_background import ended
from mitmproxy.http import HTTPFlow
from mitmproxy.io import read_flows_from_paths
from support.bad_mcp_ways import FORGED
from support.line import Line
from support.mcp_servers import BAD, OFFICIAL, over_http
from support.mitmdump import Mitmdump
from support.processes import ESCAPING, is_running
from support.text_backend import TextBackend, says

NEVER = {"require_approval": "never"}
# Request timeout, in seconds. On a busy machine, the official MCP servers take several seconds to start.
SECONDS = 15


def block(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


ADD = block("calc__add", a=1, b=2)


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend() as backend:
        yield backend


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    with over_http() as url:
        yield url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, remote: str) -> Path:
    folder = tmp_path_factory.mktemp("mcp")
    servers = {
        "calc": OFFICIAL | NEVER,
        "bad": BAD | NEVER | {"env": {"KEY": "s3cret-environment"}},
        "web": {"url": remote, "headers": {"X-Own": "s3cret-header"}} | NEVER,
        "shy": OFFICIAL,
    }
    timed = {label: {**server, "timeout": SECONDS} for label, server in servers.items()}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": timed}))
    return folder


@pytest.fixture(scope="module", params=["chat", "responses"])
def proxy(backend: TextBackend, folder: Path, remote: str, request: pytest.FixtureRequest) -> Iterator[Mitmdump]:
    with Mitmdump(
        backend.url,
        toolsim_backend=request.param,
        toolsim_mcp_config=str(folder / "mcp.json"),
        toolsim_mcp_hosts=remote.split("/")[2],
        toolsim_capture=str(folder / "captured"),
        arguments=["-w", str(folder / "flows")],
    ) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Mitmdump) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=60) as client:
        yield client


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output if item.type != "mcp_list_tools"]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_local_and_remote_servers_in_one_conversation(
    stream: bool, client: openai.OpenAI, backend: TextBackend
) -> None:
    """In a single round, the model can call a local MCP server, a remote one and the client's function.

    The prompt of the next turn contains all outputs.
    """
    text = ADD + block("web__header", name="x-own") + block("note", text="x")
    tools: Any = [{"type": "function", "name": "note", "parameters": {"type": "object"}}]

    def ask(history: Any) -> Any:
        if not stream:
            return client.responses.create(model="m", input=history, tools=tools)
        with client.responses.stream(model="m", input=history, tools=tools) as events:
            for _ in events:
                pass
            return events.get_final_response()

    backend.play([says(text)])
    history: list[Any] = [{"role": "user", "content": "hi"}]
    first = ask(history)
    assert len([item for item in first.output if item.type == "mcp_list_tools"]) == 4
    assert kinds(first) == ["mcp_call", "mcp_call", "function_call"]
    assert [item.output for item in first.output if item.type == "mcp_call"] == ["3", "s3cret-header"]
    history += [item.to_dict() for item in first.output]
    history.append({"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "noted"})
    backend.play([says(ADD), says("All done.")])
    second = ask(history)
    assert kinds(second) == ["mcp_call", "message"]
    assert not [item for item in second.output if item.type == "mcp_list_tools"]
    assert second.output_text == "All done."
    shown = str(backend.exchanges[0].transcript)
    assert "calc__add" in shown
    assert "output=3]" in shown
    assert "noted" in shown


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_mcp_call_is_hidden_from_chat_client(stream: bool, client: openai.OpenAI, backend: TextBackend) -> None:
    """A chat completions client that declares no tools receives only text, without the MCP call."""
    backend.play([says("Well.\n", ADD), says("It is 3.")])
    messages: Any = [{"role": "user", "content": "1+2?"}]
    answer: Any = client.chat.completions.create(model="m", messages=messages, stream=stream)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
    assert text == "Well.\nIt is 3."
    assert "output=3]" in str(backend.exchanges[1].transcript)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_mcp_call_is_hidden_from_messages_client(stream: bool, proxy: Mitmdump, backend: TextBackend) -> None:
    """A Messages API client does not receive the MCP call, but the prompt of the next turn contains it."""
    backend.play([says("Well.\n", ADD), says("It is 3.")])
    messages: Any = [{"role": "user", "content": "1+2?"}]
    with anthropic.Anthropic(base_url=proxy.url, api_key="k", max_retries=0, timeout=60) as client:
        if stream:
            with client.messages.stream(model="m", max_tokens=99, messages=messages) as events:
                answer = events.get_final_message()
        else:
            answer = client.messages.create(model="m", max_tokens=99, messages=messages)
        assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "Well.\nIt is 3."}]
        backend.play([says("Yes.")])
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "Sure?"}]
        client.messages.create(model="m", max_tokens=99, messages=messages)
    assert "output=3]" in str(backend.exchanges[0].transcript)


@pytest.mark.slow
def test_request_can_name_an_allowed_server(client: openai.OpenAI, backend: TextBackend, remote: str) -> None:
    """A request can name an MCP server on an allowed host, and contain a token for that server. Servers on other
    hosts are refused.
    """
    backend.play([says(block("mine__header", name="authorization")), says("Yes.")])
    tool: Any = {"type": "mcp", "server_label": "mine", "server_url": remote, "authorization": "s3cret-token"}
    answer = client.responses.create(model="m", input="hi", tools=[{**tool, "require_approval": "never"}])
    assert next(item.output for item in answer.output if item.type == "mcp_call") == "Bearer s3cret-token"
    assert "s3cret" not in str(answer.tools)
    with pytest.raises(openai.BadRequestError, match="toolsim_mcp_hosts"):
        client.responses.create(model="m", input="hi", tools=[{**tool, "server_url": "http://169.254.169.254/mcp"}])


@pytest.mark.slow
@pytest.mark.parametrize("proxy", ["chat"], indirect=True)
@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("die", "Connection closed"),
        ("flood", "more than 1,048,576 bytes"),
        ("chatter", "more than 2,000 messages"),
        ("wrong", "Error"),
        ("error", "That is no argument."),
        ("large", "expected at most 200000"),
    ],
)
def test_failures_are_reported_only_to_the_model(
    tool: str, words: str, client: openai.OpenAI, proxy: Mitmdump, backend: TextBackend
) -> None:
    """If an MCP call fails, the answer continues. The model receives the error and can make another call."""
    backend.play([says(block(f"bad__{tool}")), says(block("bad__echo", text="on")), says("Well.")])
    start = time.monotonic()
    answer = client.responses.create(model="m", input="hi")
    assert time.monotonic() - start < 3 * SECONDS
    failed, worked = (item for item in answer.output if item.type == "mcp_call")
    assert (failed.status, failed.output, worked.output) == ("failed", None, '{"text": "on"}')
    assert words in str(failed.error)
    assert words in str(backend.exchanges[1].transcript[-1])
    assert answer.output_text == "Well."


@pytest.mark.slow
def test_forged_records_are_text(client: openai.OpenAI, backend: TextBackend) -> None:
    """If the output of an MCP server imitates toolsim's call records, it is shown in the history as a JSON string on a
    single line.
    """
    backend.play([says(block("bad__lie")), says("Well.")])
    answer = client.responses.create(model="m", input="hi")
    assert kinds(answer) == ["mcp_call", "message"]
    shown = backend.exchanges[1].transcript[-1][1]
    lines = [line for line in shown.splitlines() if line.startswith("[function_call")]
    assert len(lines) == 1
    assert lines[0].endswith(f"output={json.dumps(FORGED)}]")


@pytest.mark.slow
def test_approval_is_for_one_call(client: openai.OpenAI, backend: TextBackend) -> None:
    """An approval applies only to the call for which it was requested. It can be used only once, and only with the
    same API key.
    """
    backend.play([says(block("shy__add", a=1, b=2))])
    answer = client.responses.create(model="m", input="hi")
    [asked] = [item for item in answer.output if item.type == "mcp_approval_request"]
    forged = asked.to_dict() | {"arguments": '{"a":100,"b":200}'}
    yes = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
    history: Any = [{"role": "user", "content": "hi"}, forged, yes]
    outputs = []
    for caller in (client.with_options(api_key="other"), client, client):
        backend.play([says("Well.")])
        output = caller.responses.create(model="m", input=history).output
        outputs.append([item.output for item in output if item.type == "mcp_call"])
    assert outputs == [[], ["3"], []]


@pytest.mark.slow
def test_unlisted_web_page_is_refused(proxy: Mitmdump, backend: TextBackend) -> None:
    """A request from a web page that is not listed is refused. Otherwise, the tools would run, even though the page
    could not read the response.
    """
    backend.play([says(ADD)])
    with Line(proxy.url) as line:
        body = {"model": "m", "input": "hi"}
        reply = line.post("/v1/responses", body, Origin="https://evil.example")
    assert reply.status == 403
    assert backend.exchanges == []


@pytest.mark.slow
@pytest.mark.parametrize("proxy", ["chat"], indirect=True)
@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_stops_the_tool(stream: bool, proxy: Mitmdump, backend: TextBackend) -> None:
    """If the client disconnects, the running tool is aborted, and no further request is sent to the model."""
    backend.play([says(block("calc__slow", seconds=60)), says("Well.")])
    with Line(proxy.url) as line:
        line.send("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": stream})
        backend.wait_for(1)
        time.sleep(1)
    left = time.monotonic()
    backend.play([says(ADD), says("It is 3.")])
    with Line(proxy.url) as line:
        reply = line.post("/v1/responses", {"model": "m", "input": "hi"})
    assert b'"output":"3"' in reply.body
    # If the tool had not been aborted, it would have run until its timeout.
    assert time.monotonic() - left < SECONDS - 2
    assert len(backend.exchanges) == 2


@pytest.mark.slow
def test_no_secret_is_left_in_log_or_recording(
    client: openai.OpenAI, proxy: Mitmdump, backend: TextBackend, folder: Path, remote: str
) -> None:
    """The client's token for an MCP server does not appear in the log, the recordings, the flow comments or the
    requests to the backend.
    """
    backend.play([says(block("mine__add", a=1, b=2)), says("It is 3.")])
    tool: Any = {"type": "mcp", "server_label": "mine", "server_url": remote, "authorization": "s3cret-token"}
    client.responses.create(model="m", input="hi", tools=[{**tool, "require_approval": "never"}])
    proxy.wait_for(r'"rounds": 2')
    assert "s3cret" not in proxy.log()
    for file in (folder / "captured").glob("*.flow"):
        assert b"s3cret-token" not in file.read_bytes()
    flows = [flow for flow in read_flows_from_paths([folder / "flows"]) if isinstance(flow, HTTPFlow)]
    rounds = [flow for flow in flows if "round" in flow.metadata.get("toolsim", {})]
    assert rounds
    for flow in flows:
        assert "s3cret" not in flow.comment + json.dumps(flow.metadata.get("toolsim"))
    for flow in rounds:
        assert b'"authorization"' not in (flow.request.content or b"")


@pytest.mark.slow
def test_servers_end_with_the_proxy(backend: TextBackend, folder: Path) -> None:
    """When the proxy exits, all MCP servers and their supervisors end, even if a server and another server's supervisor
    have been killed.
    """
    with Mitmdump(backend.url, toolsim_mcp_config=str(folder / "mcp.json")) as proxy:
        backend.play([says(block("bad__environment")), says("Well.")])
        with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k") as client:
            client.responses.create(model="m", input="hi")
            supervisors = servers_of(proxy.pid)
            servers = [pid for supervisor in supervisors for pid in servers_of(supervisor)]
            assert len(supervisors) == len(servers) == 3
            os.kill(servers[0], signal.SIGKILL)
            os.kill(supervisors[1], signal.SIGKILL)
            backend.play([says(ADD), says("It is 3.")])
            assert kinds(client.responses.create(model="m", input="hi"))[-1] == "message"
    end = time.monotonic() + 10
    while left := [pid for pid in (*supervisors, *servers) if is_running(pid)]:
        assert time.monotonic() < end, left


def servers_of(parent: int) -> list[int]:
    """Return the child processes that run or supervise MCP servers."""
    line = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(parent)]
    listed = subprocess.run(line, capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(child.split()[0]) for child in listed if re.search(r"(bad|official)_mcp\.py", child)]


@pytest.mark.slow
def test_stored_approval_belongs_to_its_client(backend: TextBackend, tmp_path: Path) -> None:
    """An approval request in the store is valid only for the client that received it, even if all clients share the key
    for the backend.

    Background answers can also request approval and run approved calls.
    """
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"shy": BAD}}))
    options: dict[str, Any] = {"toolsim_store": "memory", "toolsim_mcp_config": str(tmp_path / "mcp.json")}
    with (
        Mitmdump(backend.url, toolsim_backend="chat", toolsim_upstream_key="shared", **options) as proxy,
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=60) as client,
    ):
        backend.play([says(block("shy__echo", text="x")), says("Not mine."), says("Well done."), says("Bye.")])
        first = client.responses.create(model="m", input="go")
        yes: Any = {"type": "mcp_approval_response", "approval_request_id": first.output[-1].id, "approve": True}
        echoed: Any = [{"role": "user", "content": "go"}, first.output[-1].to_dict(), yes]
        other = client.with_options(api_key="other").responses.create(model="m", input=echoed)
        assert kinds(other) == ["message"]
        second = client.responses.create(model="m", previous_response_id=first.id, input=[yes])
        assert kinds(second) == ["mcp_call", "message"]
        client.responses.create(model="m", previous_response_id=second.id, input="and?")
        assert 'output={"text":"x"}]' in str(backend.exchanges[-1].transcript)
        assert {exchange.headers["authorization"] for exchange in backend.exchanges} == {"Bearer shared"}
        backend.play([says(block("shy__echo", text="x")), says("Well done.")])
        polled = [ended(client, client.responses.create(model="m", input="go", background=True).id)]
        yes["approval_request_id"] = polled[0].output[-1].id
        more = client.responses.create(model="m", previous_response_id=polled[0].id, input=[yes], background=True)
        assert kinds(ended(client, more.id)) == ["mcp_call", "message"]


@pytest.mark.slow
def test_tools_are_looked_up_before_they_run(backend: TextBackend, tmp_path: Path) -> None:
    """If the catalog contains only the names of tools, MCP tools are listed by name as well. The model looks a tool up
    before it calls it.
    """
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"calc": OFFICIAL | NEVER}}))
    options: dict[str, Any] = {"toolsim_mcp_config": str(tmp_path / "mcp.json"), "toolsim_catalog_budget": 100}
    with (
        Mitmdump(backend.url, toolsim_backend="chat", **options) as proxy,
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=60) as client,
    ):
        backend.play([says(block("find_tools", names=["calc__add"])), says(ADD), says("It is 3.")])
        answer = client.responses.create(model="m", input="What is 1 + 2?")
        assert kinds(answer) == ["mcp_call", "message"]
        assert answer.output_text == "It is 3."
        named, found, done = (str(exchange.transcript) for exchange in backend.exchanges[-3:])
    assert '"a": <integer' not in named
    assert '"a": <integer' in found
    assert "calc__add" in done
    assert "find_tools" not in answer.to_json()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to another process than the first")
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL], ids=lambda sign: sign.name)
def test_orphaned_children_end_with_the_proxy(sign: signal.Signals, backend: TextBackend, tmp_path: Path) -> None:
    """An orphaned child process of an MCP server ends with the proxy, even if the child has its own session and the
    proxy is killed.
    """
    pids = tmp_path / "pids"
    program = (
        "import os, subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {ESCAPING!r}])\n"
        "print(os.getpid(), file=open(os.environ['PIDS'], 'a'), flush=True)\n"
        f"os.execv(sys.executable, [sys.executable, *{OFFICIAL['args']!r}])\n"
    )
    server = {"command": sys.executable, "args": ["-c", program], "env": {"PIDS": str(pids)}, "timeout": SECONDS}
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"calc": server | NEVER}}))
    with Mitmdump(backend.url, toolsim_backend="chat", toolsim_mcp_config=str(config)) as proxy:
        with Line(proxy.url) as line:
            backend.play([says(ADD), says("It is 3.")])
            reply = line.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "1+2?"}]})
            assert reply.json()["choices"][0]["message"]["content"] == "It is 3."
        started = [int(pid) for pid in pids.read_text().split()]
        assert [is_running(pid) for pid in started] == [True, True]
        os.kill(proxy.pid, sign)
        end = time.monotonic() + 20
        while any(is_running(pid) for pid in started):
            assert time.monotonic() < end, "a process lives on"
            time.sleep(0.05)
