"""The addon's hooks, called one by one without a network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import taddons, tflow
from toolsim.backends.loopback import Loopback
from toolsim.backends.scripted.backend import ScriptedBackend
from toolsim.core.plan import AnswerForm, Plan
from toolsim.core.report import Report
from toolsim.proxy.addon import ToolSim
from toolsim.proxy.attempt import Attempt
from toolsim.proxy.mitmproxy12.response_pump import ToolsimPauseHook, ToolsimStoreHook
from toolsim.proxy.options.settings import Limits
from toolsim.proxy.recorder import BodyRecorder
from toolsim.proxy.stored_context import StoredContext
from toolsim.proxy.streamed import StreamedAnswer
from toolsim.proxy.timeouts import Timeouts

TOOLS = [{"type": "function", "function": {"name": "f"}}]
ANSWER = {
    "choices": [{"index": 0, "message": {"content": '<tool_call>{"name":"f"}</tool_call>'}, "finish_reason": "stop"}]
}


@pytest.fixture
async def addon() -> Any:
    addon = ToolSim()
    with taddons.context(addon) as context:
        context.options.add_option("connection_strategy", str, "eager", "")
        context.configure(addon, toolsim_engine="unknown")  # No backend is running, so its engine cannot be detected.
        addon.context = context
        yield addon
        ToolSim.exchanges.forget()
        await addon.done()


def asked(body: object, path: str = "/v1/chat/completions", mode: str = "reverse:http://backend") -> HTTPFlow:
    flow = tflow.tflow()
    flow.client_conn.proxy_mode = ProxyMode.parse(mode)
    flow.request.method = "POST"
    flow.request.path = path
    flow.request.content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return flow


def run(addon: ToolSim, flow: HTTPFlow, answer: object = ANSWER) -> HTTPFlow:
    addon.requestheaders(flow)
    addon.request(flow)
    if flow.response is None:
        flow.response = tflow.tresp(content=json.dumps(answer).encode())
        flow.response.headers["content-type"] = "application/json"
    addon.responseheaders(flow)
    addon.response(flow)
    return flow


def test_complete_turn(addon: ToolSim) -> None:
    """When a turn completes, its request and answer have been rewritten, a report is in the flow, and the exchange is
    no longer in memory.
    """
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    flow = run(addon, asked(body))
    assert b"CLIENT TOOL CATALOG" in (flow.request.content or b"")
    assert flow.response is not None
    assert flow.response.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"
    assert flow.response.headers["content-length"] == str(len(flow.response.content or b""))
    assert flow.metadata["toolsim"]["calls"] == ["f"]
    assert flow.comment == "1 call: f · #1 turn 1 · chat · “hi”"
    assert len(ToolSim.exchanges) == 0
    flow.get_state()  # type: ignore[no-untyped-call]
    flow.revert()  # type: ignore[no-untyped-call]
    assert json.loads(flow.request.content or b"") == body


@pytest.mark.parametrize("body", [b"not json", {"messages": []}, [1], {"messages": [], "tools": []}])
def test_request_without_tools_passes(body: object, addon: ToolSim) -> None:
    """A request without tools receives a Via header, and its flow receives a comment. The body of the request and the
    answer are unchanged.
    """
    flow = asked(body)
    before, headers = flow.request.raw_content, flow.request.headers.copy()
    run(addon, flow)
    assert flow.request.headers.pop("via").startswith("1.1 toolsim-")
    assert (flow.request.raw_content, flow.request.headers) == (before, headers)
    assert flow.response is not None
    assert flow.response.json() == ANSWER
    assert "toolsim" not in flow.metadata
    assert flow.comment.startswith("no tools")
    assert len(ToolSim.exchanges) == 0


def test_other_paths_stream(addon: ToolSim) -> None:
    """Requests to paths that toolsim does not handle, and the responses to them, are streamed unless another addon has
    already answered the request.
    """
    flow = asked({"tools": TOOLS}, "/v1/files")
    addon.requestheaders(flow)
    assert flow.request.stream is True
    flow.response = tflow.tresp(content=None)
    addon.responseheaders(flow)
    assert flow.response.stream is True
    answered = asked({}, "/v1/files")
    answered.response = tflow.tresp()
    addon.requestheaders(answered)
    addon.responseheaders(answered)
    assert not answered.request.stream
    assert not answered.response.stream


def test_turn_is_reported_exactly_once(addon: ToolSim, caplog: pytest.LogCaptureFixture) -> None:
    """A turn is logged and counted exactly once, even if several hooks report its end."""
    with caplog.at_level("INFO"):
        flow = run(addon, asked({"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}))
        addon.error(flow)
        addon.response(flow)
        addon.client_disconnected(flow.client_conn)
    assert caplog.text.count("1 call f") == 1
    assert 'toolsim_tool_calls_total{client="chat"} 1\n' in addon._reports.metrics.text(0)


@pytest.mark.parametrize("end", ["error", "client_disconnected"])
def test_aborted_exchange_is_freed(end: str, addon: ToolSim, caplog: pytest.LogCaptureFixture) -> None:
    """An exchange that ends without an answer is freed and logged as aborted."""
    flow = asked({"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS})
    addon.requestheaders(flow)
    addon.request(flow)
    assert ToolSim.exchanges.of(flow) is not None
    with caplog.at_level("INFO"):
        if end == "error":
            addon.error(flow)
        else:
            addon.client_disconnected(tflow.tclient_conn())
            assert ToolSim.exchanges.of(flow) is not None
            addon.client_disconnected(flow.client_conn)
    assert len(ToolSim.exchanges) == 0
    assert "client disconnected" in caplog.text


def test_internal_error_is_a_500(addon: ToolSim, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an exception occurs while a request is rewritten, the client receives a 500, and the original request is not
    forwarded.
    """

    def bug(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("toolsim.proxy.jobs.rewrite_request", bug)
    flow = run(addon, asked({"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}))
    assert flow.response is not None
    assert (flow.response.status_code, flow.response.json()["error"]["code"]) == (500, "internal_error")


STRATEGIES = [
    ({"mode": ["reverse:http://backend"]}, "lazy"),
    ({"toolsim_upstream": "http://backend"}, "lazy"),
    ({"toolsim_backend": "scripted"}, "lazy"),
    ({"toolsim_repair": "off"}, "eager"),
]


@pytest.mark.parametrize(("options", "expected"), STRATEGIES)
def test_connection_strategy(options: dict[str, Any], expected: str, addon: Any) -> None:
    """If an early connection attempt could cause the client's connection to be closed, mitmproxy connects to the target
    only when a request arrives.
    """
    addon.context.configure(addon, **options)
    assert addon.context.options.connection_strategy == expected


@pytest.fixture
def loopback(addon: ToolSim) -> Iterator[Loopback]:
    addon._builtin._loopback = Loopback(ScriptedBackend(0), 4711)
    yield addon._builtin._loopback
    addon._builtin._loopback = None


def test_builtin_backend_as_upstream_is_guarded(addon: Any, loopback: Loopback) -> None:
    """If the upstream option refers to the built-in codex backend, a request must be local and must not come from a web
    page.
    """
    addon.context.configure(addon, toolsim_backend="codex", toolsim_upstream="http://127.0.0.1:4711")
    for peer, origin, status in (
        ("10.0.0.9", "", 403),
        ("127.0.0.1", "https://evil.example", 403),
        ("127.0.0.1", "", None),
    ):
        flow = asked({"messages": []}, mode="regular")
        flow.client_conn.peername = (peer, 1234)
        if origin:
            flow.request.headers["origin"] = origin
        addon.requestheaders(flow)
        assert (flow.response and flow.response.status_code) == status
        ToolSim.exchanges.forget()


def test_reload_keeps_exchanges(addon: ToolSim) -> None:
    """If the addon is reloaded during an exchange, the new instance of the addon finishes that exchange."""
    flow = asked({"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS})
    addon.requestheaders(flow)
    addon.request(flow)
    flow.response = tflow.tresp(content=json.dumps(ANSWER).encode(), headers=((b"content-type", b"application/json"),))
    later = ToolSim()
    later.responseheaders(flow)
    later.response(flow)
    assert flow.response.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert len(ToolSim.exchanges) == 0


async def test_stores_are_closed(addon: ToolSim, tmp_path: Path) -> None:
    """If the store is replaced, the previous store is closed immediately. The last store is closed at shutdown, so no
    file remains open.
    """
    for name in "one", "two":
        addon.context.configure(addon, toolsim_store=f"sqlite:{tmp_path / name}")
        assert await addon._memory.store(StoredContext("p", own=b"[]"), b"{}", []) is True
        assert (tmp_path / f"{name}-wal").exists()
    await addon.done()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.parametrize("hook", [ToolsimStoreHook, ToolsimPauseHook])
async def test_hooks_during_an_answer_do_not_update_its_flow(hook: type, addon: Any) -> None:
    """The hooks that toolsim triggers during an answer do not trigger ``update``, because that would make other addons
    redraw the flow.
    """
    updated: list[object] = []
    manager = addon.context.master.addons
    manager.chain = [addon, SimpleNamespace(update=updated.append)]
    limits = Limits(10.0)
    plan, timeouts = Plan("responses", "responses", AnswerForm(stream=True)), Timeouts(limits)
    answer = StreamedAnswer(plan, Report(), limits=limits, timeouts=timeouts, recorder=BodyRecorder())
    await manager.handle_lifecycle(hook(answer))
    assert updated == []


def test_attributes_named_like_hooks_are_callable(addon: ToolSim) -> None:
    """Each attribute of the addon that has the name of a mitmproxy hook is callable, because mitmproxy would call
    it.
    """
    from mitmproxy.hooks import all_hooks

    hooks = {name for name in all_hooks if hasattr(addon, name)}
    assert all(callable(getattr(addon, name)) for name in hooks)
    assert {"requestheaders", "request", "responseheaders", "response", "error", "client_disconnected"} <= hooks


async def test_resent_request_keeps_its_references(addon: Any) -> None:
    """A request that is resent after a refusal still contains the earlier turns to which it refers."""
    addon.context.configure(addon, toolsim_store="memory", toolsim_engine="llama.cpp", toolsim_mode="auto")
    tools = [{"type": "function", "name": "f"}]
    flow = asked({"model": "m", "input": "then?", "tools": tools}, "/v1/responses")
    flow.live = True
    addon.requestheaders(flow)
    exchange = ToolSim.exchanges.of(flow)
    assert exchange is not None
    remembered = exchange.stored_context
    assert remembered is not None
    remembered.body = json.dumps({"model": "m", "input": "First this, then?", "tools": tools}).encode()
    addon.request(flow)
    assert b"First this" in flow.request.content
    flow.response = tflow.tresp(status_code=400, content=b"m does not support tools")
    attempt = exchange.find(Attempt)
    assert attempt is not None
    assert attempt.is_refused(exchange, flow, can_resend=True)
    addon.toolsim_resend(flow)
    assert flow.response is None
    assert b"First this" in flow.request.content


@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ({}, "eager"),
        ({"mode": ["reverse:http://h"]}, "lazy"),
        ({"toolsim_upstream": "http://h"}, "lazy"),
        ({"toolsim_backend": "scripted"}, "lazy"),
        ({"toolsim_backend": "chat"}, "eager"),
    ],
)
def test_lazy_connections(addon: Any, options: dict[str, Any], strategy: str) -> None:
    """In modes in which an unreachable target would otherwise close the client's connection, mitmproxy connects to the
    target only when a request arrives.
    """
    addon.context.configure(addon, **options)
    assert addon.context.options.connection_strategy == strategy


@pytest.mark.parametrize("engine", ["auto", "vllm"])
async def test_first_request_waits_only_for_engine_detection(addon: Any, engine: str) -> None:
    """The first request waits for engine detection only if no engine is configured."""
    addon.context.configure(addon, toolsim_engine=engine)
    waiting = addon.requestheaders(asked({"model": "m"}))
    assert (waiting is not None) == (engine == "auto")
    assert bool(addon._backends.tasks()) == (engine == "auto")
    if waiting is not None:
        waiting.close()
