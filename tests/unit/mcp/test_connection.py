"""Tests for a connection to an MCP server, with real processes, including a server that deliberately misbehaves."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from support.bad_mcp_ways import FORGED
from support.mcp_servers import BAD, OFFICIAL, over_http
from toolsim.mcp.connection import McpConnection, ServerFailed
from toolsim.mcp.outcome import FAILED, TOO_LARGE, UNREACHABLE
from toolsim.mcp.runtime import Caller
from toolsim.mcp.server_config import read_file
from toolsim.mcp.servers import Server

SECONDS = 3.0
# Timeout for calls that are expected to finish, in seconds. On a busy machine, 2,000 messages take longer than
# ``SECONDS``.
PATIENT = 60.0
FOLDER = str(Path(BAD["args"][0]).parent)


def server(**fields: Any) -> Server:
    [read] = read_file(json.dumps({"mcpServers": {"it": fields}}), {})
    return read


@pytest.fixture
async def bad(request: pytest.FixtureRequest) -> AsyncIterator[McpConnection]:
    seconds = getattr(request, "param", SECONDS)
    connection = McpConnection(server(**BAD, env={"KEY": "s3cret-value"}, timeout=seconds))
    yield connection
    await connection.close()


@pytest.mark.slow
async def test_server_lists_and_calls_tools(bad: McpConnection) -> None:
    """The list of tools is requested from the MCP server only once. Calls return text or errors. The server process
    receives only the configured environment variables.
    """
    tools = await bad.tools()
    assert (tools[0].name, tools[0].is_read_only, tools[1].is_read_only) == ("echo", True, False)
    assert await bad.tools() is tools
    assert (await bad.call("echo", {"text": "é\n"}, 100)).output == '{"text": "\\u00e9\\n"}'
    assert (await bad.call("lie", {}, 1000)).output == FORGED
    refused = await bad.call("error", {}, 100)
    assert refused.shown == "Error: That is no argument."
    assert (await bad.call("large", {}, 200_000)).code == TOO_LARGE
    environment = json.loads((await bad.call("environment", {}, 100_000)).shown)
    assert environment["KEY"] == "s3cret-value"
    assert not {name for name in environment if "PYTEST" in name or "VIRTUAL_ENV" in name}


@pytest.mark.slow
async def test_trace_ids_are_passed_on(bad: McpConnection) -> None:
    """A call within a span passes the trace IDs to the server as metadata. Other calls have no metadata."""
    assert (await bad.call("meta", {}, 1000)).output == "null"
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1)))
    with trace.use_span(span):
        output = (await bad.call("meta", {}, 1000)).output
    assert json.loads(output or "") == {"traceparent": f"00-{1:032x}-{2:016x}-01"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "tool", "words"),
    [
        (SECONDS, "hang", "did not answer within 3 seconds"),
        (PATIENT, "die", "Connection closed"),
        (PATIENT, "flood", "it sent a message of more than 1,048,576 bytes"),
        (PATIENT, "chatter", "more than 2,000 messages"),
        (SECONDS, "garbage", "did not answer within 3 seconds"),
        (PATIENT, "wrong", ""),
        (SECONDS, "deep", ""),
    ],
    indirect=["bad"],
)
async def test_failed_call_does_not_affect_the_next(bad: McpConnection, tool: str, words: str) -> None:
    """If a call fails, the error is reported soon and without blocking the event loop, and the next call succeeds."""
    await bad.tools()
    longest, last, is_over = 0.0, time.monotonic(), False

    async def watch() -> None:
        nonlocal longest, last
        while not is_over:
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()

    watcher = asyncio.create_task(watch())
    began = time.monotonic()
    outcome = await bad.call(tool, {}, 1000)
    took, is_over = time.monotonic() - began, True
    await watcher
    assert outcome.code in (UNREACHABLE, FAILED)
    assert words in outcome.shown
    assert took < 10 * SECONDS
    assert longest < 1.0
    assert (await bad.call("echo", {}, 100)).output == "{}"


@pytest.mark.slow
async def test_failed_starts_are_delayed() -> None:
    """After two failed attempts to start the MCP server, requests fail immediately for some time. After this delay, the
    next request tries to start the server again.
    """
    now = 0.0
    connection = McpConnection(server(command="/no/such/program", timeout=SECONDS), clock=lambda: now)
    messages = []
    for _ in range(3):
        with pytest.raises(ServerFailed) as caught:
            await connection.tools()
        messages.append(str(caught.value))
    assert "cannot be started" in messages[0]
    assert "/no/such" not in messages[0]
    assert "try again in 1 s" in messages[2]
    now = 1.5
    with pytest.raises(ServerFailed, match="cannot be started"):
        await connection.tools()
    await connection.close()


@pytest.mark.slow
async def test_cancelled_call_does_not_affect_others(bad: McpConnection) -> None:
    """If a call is canceled, other callers' calls continue. They use the same MCP server or, if it does not respond, a
    new process.
    """
    call = asyncio.create_task(bad.call("hang", {}, 100))
    await asyncio.sleep(0.5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (
        await bad.call("echo", {}, 100)
    ).code == UNREACHABLE  # The server is still busy with the canceled call, so this call times out.
    assert (await bad.call("echo", {}, 100)).output == "{}"


@pytest.mark.slow
@pytest.mark.parametrize("bad", [PATIENT], indirect=True)
async def test_new_connection_lists_tools_again(bad: McpConnection) -> None:
    """After a restart, the list of tools is requested again, because the new server process might offer different
    tools. This includes a restart that was caused by a call.
    """
    tools = await bad.tools()
    assert (await bad.call("die", {}, 100)).code == UNREACHABLE
    assert (await bad.call("echo", {}, 100)).output == "{}"
    assert await bad.tools() is not tools
    assert await bad.tools() is await bad.tools()


@pytest.mark.slow
async def test_cancelled_caller_does_not_stop_the_start() -> None:
    """If a caller is canceled while the MCP server is being started, the start continues, and the next caller waits for
    it.
    """
    program = "import runpy, sys, time; time.sleep(1); runpy.run_path(sys.argv[1])"
    slow = server(
        command=BAD["command"], args=["-c", program, *BAD["args"]], env={"PYTHONPATH": FOLDER}, timeout=PATIENT
    )
    connection = McpConnection(slow)
    asked = asyncio.create_task(connection.tools())
    await asyncio.sleep(0.3)
    asked.cancel()
    assert (await connection.tools())[0].name == "echo"
    await connection.close()


@pytest.mark.slow
async def test_secrets_are_never_in_messages(caplog: pytest.LogCaptureFixture) -> None:
    """The secrets of an MCP server appear neither in error messages nor in the log, even if the server itself prints
    them.
    """
    program = "import os, sys; print('the key is', os.environ['KEY'], file=sys.stderr)"
    connection = McpConnection(
        server(command="python3", args=["-c", program], env={"KEY": "s3cret-value"}, timeout=SECONDS)
    )
    with caplog.at_level(logging.INFO), pytest.raises(ServerFailed) as caught:
        await connection.tools()
    await connection.close()
    assert "the key is [redacted]" in caplog.text
    assert "s3cret" not in caplog.text + str(caught.value)
    web = McpConnection(server(url="http://127.0.0.1:9/s3cret/mcp?key=s3cret", timeout=SECONDS))
    with caplog.at_level(logging.INFO), pytest.raises(ServerFailed) as caught:
        await web.tools()
    await web.close()
    assert "s3cret" not in caplog.text + str(caught.value)


@pytest.mark.ci
@pytest.mark.slow
async def test_official_servers_work() -> None:
    """MCP servers written with the official SDK work with each transport. A slow call does not affect other calls."""

    async def over_the_web(url: str, way: str) -> None:
        connection = McpConnection(server(url=url, type=way, headers={"X-Own": "mine"}, timeout=10))
        assert (await connection.call("header", {"name": "x-own"}, 100)).output == "mine"
        await ask(connection)

    async def ask(connection: McpConnection) -> None:
        assert [tool.name for tool in await connection.tools()] == ["add", "slow", "header"]
        answers = await asyncio.gather(*(connection.call("add", {"a": n, "b": 1}, 100) for n in range(3)))
        assert [each.output for each in answers] == ["1", "2", "3"]
        assert "validation error" in (await connection.call("add", {"a": "x"}, 1000)).shown
        assert (await connection.call("slow", {"seconds": 60}, 100)).code == UNREACHABLE
        assert (await connection.call("add", {"a": 1, "b": 1}, 100)).output == "2"
        await connection.close()

    ways = ("streamable-http", "sse")
    with over_http(ways[0]) as http, over_http(ways[1]) as sse:
        # The transports are tested concurrently, because each test waits for a request timeout.
        over_pipes = ask(McpConnection(server(**OFFICIAL, timeout=10)))
        await asyncio.gather(over_pipes, *map(over_the_web, (http, sse), ways))


@pytest.mark.slow
async def test_callers_share_a_local_server_in_turns(bad: McpConnection) -> None:
    """A local MCP server handles one request at a time. Answers take turns, so an answer with a single call does not
    have to wait for all calls of another answer.
    """
    await bad.tools()
    done: list[str] = []

    async def call(answer: str, seconds: float) -> None:
        outcome = await bad.call("sleep", {"seconds": seconds}, 100, Caller("me", answer))
        assert outcome.code == "", outcome.shown
        done.append(answer)

    await asyncio.gather(*(call("slow", 0.3) for _ in range(6)), call("quick", 0.0))
    assert done.index("quick") == 1


@pytest.mark.slow
async def test_busy_server_times_out_without_being_dropped() -> None:
    """If a request to a busy MCP server is not answered within its timeout, the error states that the server is busy.
    The server is not restarted.
    """
    connection = McpConnection(server(**BAD, timeout=1))
    await connection.tools()
    calls = [connection.call("sleep", {"seconds": 0.8}, 100, Caller("me", "slow")) for _ in range(4)]
    outcomes = await asyncio.gather(*calls)
    assert [outcome.code for outcome in outcomes] == ["", "", UNREACHABLE, UNREACHABLE]
    assert "is busy: it was still handling other requests after 1 s" in outcomes[2].shown
    assert (await connection.call("echo", {}, 100)).output == "{}"
    await connection.close()
