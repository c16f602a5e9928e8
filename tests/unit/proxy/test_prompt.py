"""A stream that runs hooks itself, compared with mitmproxy's own: the same hooks and bytes, whatever addons do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import Client, ConnectionState
from mitmproxy.exceptions import AddonHalt
from mitmproxy.flow import Flow
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy import layers
from mitmproxy.proxy.commands import CloseConnection, Command, OpenConnection, SendData, StartHook
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.events import ConnectionClosed, DataReceived, Event, HookCompleted, OpenConnectionCompleted, Start
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers import http
from mitmproxy.proxy.layers.http import HTTPMode, HttpStream
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import taddons
from toolsimlib.proxy.dispatch import Dispatch
from toolsimlib.proxy.prompt import PromptStream

ON_THE_WAY = ("requestheaders", "request", "responseheaders")
HOOKS = (*ON_THE_WAY, "response", "error", "update")

BODY = b'{"input": "hi"}'
REQUESTS = {
    "one read": [b"POST /v1/responses HTTP/1.1\r\nHost: b\r\nContent-Length: 15\r\n\r\n" + BODY],
    "two reads": [b"POST /v1/responses HTTP/1.1\r\nHost: b\r\nContent-Length: 15\r\n\r\n", BODY],
    "no body": [b"GET /v1/models HTTP/1.1\r\nHost: b\r\n\r\n"],
    "chunks": [
        b"POST /v1/responses HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n",
        b'{"in\r\nb\r\nput": "hi"}\r\n0\r\n\r\n',
    ],
    "expecting": [
        b"POST /v1/responses HTTP/1.1\r\nHost: b\r\nContent-Length: 15\r\nExpect: 100-continue\r\n\r\n",
        BODY,
    ],
    "the next one at its heels": [
        b"GET /v1/models HTTP/1.1\r\nHost: b\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nHost: b\r\nContent-Length: 15\r\n\r\n" + BODY,
    ],
    "no host": [b"POST /v1/responses HTTP/1.1\r\nContent-Length: 15\r\n\r\n" + BODY],
    "too long": [b"POST /v1/responses HTTP/1.1\r\nHost: b\r\nContent-Length: 15000\r\n\r\n" + BODY],
}
ANSWERS = {
    "whole": [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", b"text"],
    "stream": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntext\r\n", b"4\r\nmore\r\n0\r\n\r\n"],
    "empty": [b"HTTP/1.1 204 No Content\r\n\r\n"],
    "broken": [b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"],
}


class Addon:
    """Records the hooks that it gets, and acts in one of them."""

    def __init__(self, hook: str, act: Callable[[HTTPFlow], Any]) -> None:
        self.name = "acting"
        self.calls: list[str] = []
        self._hook, self._act = hook, act

    def __getattr__(self, hook: str) -> Any:
        if hook not in HOOKS:
            raise AttributeError(hook)

        def handler(argument: Any) -> Any:
            self.calls.append(hook)
            return self._act(argument) if hook == self._hook else None

        return handler


class Connection:
    """mitmproxy's layers of one client connection, and a task for each hook, as in mitmproxy's server; no sockets."""

    def __init__(self, context: taddons.context) -> None:
        self._manager = context.master.addons
        self.client = Client(peername=("c", 1), sockname=("p", 2), state=ConnectionState.OPEN)
        self.client.proxy_mode = ProxyMode.parse("reverse:http://b:1")
        self._top = layers.modes.ReverseProxy(Context(self.client, context.options))
        self.server: Any = None
        self.flow: HTTPFlow | None = None
        self.sent: list[tuple[str, bytes]] = []
        self.hooks: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def give(self, event: Event) -> None:
        """Pass an event to the layers, and wait until nothing is running."""
        self._handle(event)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _handle(self, event: Event) -> None:
        for command in self._top.handle_event(event):
            self._do(command)

    def _do(self, command: Command) -> None:
        if isinstance(command, SendData):
            self.sent.append(("client" if command.connection is self.client else "backend", command.data))
        elif isinstance(command, CloseConnection):
            command.connection.state = ConnectionState.CLOSED
            self.sent.append(("client is closed" if command.connection is self.client else "backend is closed", b""))
        elif isinstance(command, OpenConnection):
            self.server = command.connection
            self.server.state = ConnectionState.OPEN
            self._start(self._opened(command))
        elif isinstance(command, StartHook):
            self.hooks.append(command.name)
            self._start(self._run(command))

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _opened(self, command: OpenConnection) -> None:
        self._handle(OpenConnectionCompleted(command, None))

    async def _run(self, hook: StartHook) -> None:
        (subject,) = hook.args()
        if isinstance(subject, NextLayer):
            subject.layer = layers.HttpLayer(subject.context, HTTPMode.transparent)
        else:
            await self._manager.handle_lifecycle(hook)
            if isinstance(subject, Flow):
                await subject.wait_for_resume()
        if hook.blocking:
            self._handle(HookCompleted(hook))


def nothing(flow: HTTPFlow) -> None:
    pass


async def wait(flow: HTTPFlow) -> None:
    await asyncio.sleep(0.001)


async def wait_for_nothing(flow: HTTPFlow) -> None:
    pass


def answer(flow: HTTPFlow) -> None:
    flow.response = Response.make(418, b"I answer this myself")


def kill(flow: HTTPFlow) -> None:
    flow.kill()


def intercept(flow: HTTPFlow) -> None:
    flow.intercept()
    asyncio.get_running_loop().call_later(0.001, flow.resume)


def fail(flow: HTTPFlow) -> None:
    raise ValueError("this one fails")


def halt(flow: HTTPFlow) -> None:
    raise AddonHalt


def cancel(flow: HTTPFlow) -> None:
    raise asyncio.CancelledError  # As ``future.result()`` does.


def stream(flow: HTTPFlow) -> None:
    (flow.response or flow.request).stream = True


async def wait_and_answer(flow: HTTPFlow) -> None:
    await asyncio.sleep(0.001)
    answer(flow)


ACTS = (nothing, wait, wait_for_nothing, answer, kill, intercept, fail, halt, cancel, stream, wait_and_answer)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_764_967_971.0)


async def carried(
    monkeypatch: pytest.MonkeyPatch, stream: type[HttpStream], request: str, reply: str, hook: str, act: Any
) -> tuple[list[str], list[tuple[str, bytes]], list[str]]:
    """Return which hooks an addon got, what was sent to whom, and which hooks were left to mitmproxy."""
    addon = Addon(hook, act)
    with monkeypatch.context() as patch, taddons.context(Proxyserver(), addon, Dispatch()) as context:
        patch.setattr(http, "HttpStream", stream)
        context.options.body_size_limit = "1k"
        connection = Connection(context)
        await connection.give(Start())
        reads = REQUESTS[request]
        for data in [b"".join(reads)] if request == "the next one at its heels" else reads:
            if connection.client.connected:
                await connection.give(DataReceived(connection.client, data))
        for data in ANSWERS[reply]:
            if connection.server is not None and connection.server.connected:
                await connection.give(DataReceived(connection.server, data))
        if connection.client.connected:
            connection.client.state = ConnectionState.CLOSED
            await connection.give(ConnectionClosed(connection.client))
        assert not context.master.addons.get("dispatch").started
    return addon.calls, connection.sent, [name for name in connection.hooks if name in ON_THE_WAY]


@pytest.mark.parametrize(
    ("hook", "request_", "reply"),
    [(hook, request_, "whole") for hook in ON_THE_WAY[:2] for request_ in REQUESTS]
    + [("responseheaders", "two reads", reply) for reply in ANSWERS]
    + [("responseheaders", "the next one at its heels", "stream")],
)
async def test_hooks_and_bytes_are_mitmproxys(
    monkeypatch: pytest.MonkeyPatch, hook: str, request_: str, reply: str
) -> None:
    """Whatever an addon does in one of the hooks on the way to an answer."""
    for act in ACTS:
        theirs = await carried(monkeypatch, HttpStream, request_, reply, hook, act)
        ours = await carried(monkeypatch, PromptStream, request_, reply, hook, act)
        assert ours[:2] == theirs[:2], act


@pytest.mark.parametrize("act", [nothing, wait_for_nothing, fail, halt])
@pytest.mark.parametrize("hook", ON_THE_WAY)
async def test_what_keeps_nobody_waiting_takes_no_task(
    monkeypatch: pytest.MonkeyPatch, hook: str, act: Callable[[HTTPFlow], Any]
) -> None:
    _, sent, hooks = await carried(monkeypatch, PromptStream, "two reads", "whole", hook, act)
    assert hooks == []
    assert "backend" in dict(sent)


@pytest.mark.parametrize("act", [wait, answer, kill, intercept])
async def test_mitmproxy_waits_for_all_others(monkeypatch: pytest.MonkeyPatch, act: Callable[[HTTPFlow], Any]) -> None:
    calls, _, hooks = await carried(monkeypatch, PromptStream, "two reads", "whole", "request", act)
    assert hooks[0] == "request"
    assert calls.count("request") == 1


@pytest.mark.parametrize("is_reloaded", [False, True])
async def test_a_hook_that_waits_runs_once_though_the_addon_is_unloaded(
    monkeypatch: pytest.MonkeyPatch, is_reloaded: bool
) -> None:
    monkeypatch.setattr(http, "HttpStream", PromptStream)
    addon, dispatch = Addon("request", wait), Dispatch()
    with taddons.context(Proxyserver(), addon, dispatch) as context:
        addons = context.master.addons
        connection = Connection(context)
        await connection.give(Start())
        head, body = REQUESTS["two reads"]
        await connection.give(DataReceived(connection.client, head))
        waiting = asyncio.create_task(connection.give(DataReceived(connection.client, body)))
        while not dispatch.started:
            await asyncio.sleep(0)
        addons.remove(dispatch)
        if is_reloaded:
            addons.add(Dispatch())
        await waiting
        assert addon.calls.count("request") == 1
        assert not dispatch.started
        assert ("handle_lifecycle" in vars(addons)) is is_reloaded


async def test_without_the_way_of_hooks_mitmproxy_runs_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HttpStream", PromptStream)
    with taddons.context(Proxyserver()) as context:
        connection = Connection(context)
        await connection.give(Start())
        await connection.give(DataReceived(connection.client, REQUESTS["one read"][0]))
    assert connection.hooks == ["next_layer", "requestheaders", "request"]
