"""Tests that calls to masked tools never reach real clients, in any form, streamed or non-streamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from support.answers import Seen, read, rewrite
from support.each import each
from support.effort import some
from support.emitted import BODIES, WHOLE, Emitted, Step
from support.wire import DONE, frame
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import rewrite_request

API_NAMES: tuple[ApiName, ...] = ("chat", "responses")
ARGUMENTS = '{"path": "/"}'
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
CHOSEN: dict[str, Callable[[], Any]] = {
    "chat": lambda: {"type": "function", "function": {"name": "add"}},
    "responses": lambda: {"type": "function", "name": "add"},
}
ALLOWED: dict[str, Callable[[], Any]] = {
    "chat": lambda: {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CHOSEN["chat"]()]}},
    "responses": lambda: {"type": "allowed_tools", "mode": "auto", "tools": [CHOSEN["responses"]()]},
}


def request(
    client: ApiName, stream: bool, declared: list[str], choice: Any, policy: dict[str, Any], **more: Any
) -> Any:
    tools = [{"type": "function", "name": name, "parameters": SCHEMA} for name in declared]
    body: dict[str, Any] = {"model": "m", "stream": stream, **more}
    if client == "chat":
        fields = [{key: value for key, value in tool.items() if key != "type"} for tool in tools]
        body |= {"tools": [{"type": "function", "function": field} for field in fields]}
        body |= {"messages": [{"role": "user", "content": "x"}]}
    else:
        body |= {"tools": tools, "input": "x"}
    if choice is not None:
        body["tool_choice"] = choice
    rewritten = rewrite_request(
        client, "/v1", json.dumps(body).encode(), Policy(**policy), output_mode=None, report=Report()
    )
    assert rewritten is not None
    return rewritten.plan


def answer(the_plan: Any, body: bytes, cut: int = 0) -> tuple[Seen, Report]:
    kind = "text/event-stream" if the_plan.stream else "application/json"
    rewriter, chunks = rewrite(the_plan, kind, body, cut)
    return read(the_plan.client, the_plan.stream, chunks, rewriter.status), rewriter._report


def legacy(name: str, stream: bool) -> bytes:
    call = {"name": name, "arguments": ARGUMENTS}
    if not stream:
        message = {"role": "assistant", "content": None, "function_call": call}
        return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "function_call"}]}).encode()
    pieces = [{"name": name, "arguments": ""}, *({"arguments": letter} for letter in ARGUMENTS)]
    frames = [{"choices": [{"index": 0, "delta": {"function_call": piece}}]} for piece in pieces]
    return b"".join([*map(frame, frames), frame({"choices": [{"index": 0, "finish_reason": "function_call"}]}), DONE])


def custom(name: str, stream: bool) -> bytes:
    call = {"type": "custom", "id": "c", "custom": {"name": name, "input": "rm -r /"}}
    if not stream:
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}).encode()
    delta = {"tool_calls": [{"index": 0, **call}]}
    return b"".join([frame({"choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]}), DONE])


def built(backend: ApiName, step: Callable[[str], Step]) -> tuple[ApiName, Callable[[str, bool], bytes]]:
    return backend, lambda name, stream: (BODIES if stream else WHOLE)[backend]([step(name)], "stop")


def text(form: str) -> tuple[ApiName, Callable[[str, bool], bytes]]:
    return built("chat", lambda name: form.replace("NAME", name).replace("ARGUMENTS", ARGUMENTS))


FORMS: dict[str, tuple[ApiName, Callable[[str, bool], bytes]]] = {
    "chat": built("chat", lambda name: Emitted(name, ARGUMENTS)),
    "responses": built("responses", lambda name: Emitted(name, ARGUMENTS)),
    "of a namespace": built("responses", lambda name: Emitted(name, ARGUMENTS, namespace="functions")),
    "function_call": ("chat", legacy),
    "custom": ("chat", custom),
    "tagged": text('<tool_call>{"name": "NAME", "arguments": ARGUMENTS}</tool_call>'),
    "xml": text("<use_tool><name>NAME</name><path>/</path></use_tool>"),
    "untagged": text('{"name": "NAME", "arguments": ARGUMENTS}'),
    "mistral": text('[TOOL_CALLS][{"name": "NAME", "arguments": ARGUMENTS}]'),
    "qwen": text("<tool_call><function=NAME><parameter=path>/</parameter></function></tool_call>"),
}
LIMITS: dict[str, tuple[list[str], dict[str, Callable[[], Any]] | str | None, dict[str, Any]]] = {
    "denied": (["add", "rm"], None, {"tool_denylist": frozenset({"rm"})}),
    "denied, undeclared": (["add"], None, {"tool_denylist": frozenset({"rm"})}),
    "not allowed": (["add", "rm"], None, {"tool_allowlist": frozenset({"add"})}),
    "not allowed, undeclared": (["add"], None, {"tool_allowlist": frozenset({"add"})}),
    "not chosen": (["add", "rm"], CHOSEN, {}),
    "not chosen, undeclared": (["add"], CHOSEN, {}),
    "not among the allowed_tools": (["add", "rm"], ALLOWED, {}),
    "not among the allowed_tools, undeclared": (["add"], ALLOWED, {}),
    "none": (["add", "rm"], "none", {}),
    "none, undeclared": (["add"], "none", {}),
}


@each(("client", "form", "limit"), some(product(API_NAMES, FORMS, LIMITS)))
def test_masked_call_is_never_passed_on(client: ApiName, form: str, limit: str) -> None:
    """A call to a masked tool becomes text, regardless of its spelling, its form and the options, and whether the
    answer is streamed or not.
    """
    backend, body = FORMS[form]
    declared, choice, policy = LIMITS[limit]
    wanted = choice[client]() if isinstance(choice, dict) else choice
    for name in ("rm", " RM", "functions.rm"):
        for stream, arguments in ((False, "buffered"), (True, "buffered"), (True, "incremental")):
            options = {**policy, "unknown_tool": "call", "stream_arguments": arguments, "backend": backend}
            the_plan = request(client, stream, declared, wanted, options)
            seen, report = answer(the_plan, body(name, stream))
            assert [item[0] for item in seen.items] == ["text"], (name, stream, arguments)
            assert report.calls == []


@pytest.mark.parametrize("mode", ["native", "inject"])
@pytest.mark.parametrize("api_name", API_NAMES)
def test_masked_call_of_a_native_backend_is_dropped(api_name: ApiName, mode: str) -> None:
    """A call to a masked tool is dropped even if the backend received the tools natively."""
    options = {"mode": mode, "unknown_tool": "call", "tool_denylist": frozenset({"rm"})}
    for stream in (False, True):
        the_plan = request(api_name, stream, ["add", "rm"], None, options)
        body = (BODIES if stream else WHOLE)[api_name]([Emitted("rm", ARGUMENTS), Emitted("add", ARGUMENTS)], "stop")
        seen, _ = answer(the_plan, body)
        assert [item[1] for item in seen.items if item[0] == "call"] == ["add"]


@each("form", ["chat", "responses", "of a namespace", "function_call", "custom"])
@each("client", API_NAMES)
@each("unknown", ["text", "call"])
def test_undeclared_structured_call_becomes_text(client: ApiName, form: str, unknown: str) -> None:
    """A structured call to an undeclared tool becomes text or, if ``toolsim_unknown_tool`` allows it, a call."""
    backend, body = FORMS[form]
    if form == "custom" and client == "chat" and unknown == "call":
        pytest.skip("support.answers reads no custom calls of a chat completion")
    for stream in (False, True):
        the_plan = request(client, stream, ["add"], None, {"unknown_tool": unknown, "backend": backend})
        seen, report = answer(the_plan, body("own", stream))
        if unknown == "text":
            (item,) = seen.items
            assert item[0] == "text"
            assert "own" in item[1]
            assert (ARGUMENTS in item[1]) or "rm -r /" in item[1]
            assert len(report.warnings) == len(report.dropped_calls) == 1
        else:
            assert [found[0] for found in seen.items] == ["call"]
            assert report.warnings == ["UNKNOWN_TOOL:own"]


LARGE = json.dumps({"path": "é" * 60})
BROKEN = {
    "no JSON": 'oops "é"',
    "a list": "[1]",
    "no end": '{"path": "é',
    "too large": LARGE,
}


@each("stream", [False, True])
@each("backend", API_NAMES)
@each("client", API_NAMES)
@each("kind", BROKEN)
def test_broken_structured_call_becomes_text(client: ApiName, backend: ApiName, kind: str, stream: bool) -> None:
    """A broken structured call becomes text that contains its name and original arguments, and causes a warning."""
    options = {"max_tool_bytes": 100, "backend": backend}
    the_plan = request(client, stream, ["add"], None, options)
    body = (BODIES if stream else WHOLE)[backend](["Well.", Emitted("add", BROKEN[kind])], "tool_calls")
    expected, report = answer(the_plan, body)
    ((_, words),) = expected.items
    assert words.startswith("Well.\n\nCall to add, not passed on because ")
    assert words.endswith(BROKEN[kind])
    assert report.warnings == ["CALL_AS_TEXT:add"]
    assert expected.finish in ("stop", "completed")
    for cut in (1, 7, 100):
        assert answer(the_plan, body, cut)[0] == expected
    whole = answer(request(client, not stream, ["add"], None, options), _other(backend, stream, kind))[0]
    assert whole.items == expected.items


def _other(backend: ApiName, stream: bool, kind: str) -> bytes:
    return (WHOLE if stream else BODIES)[backend](["Well.", Emitted("add", BROKEN[kind])], "tool_calls")


@pytest.mark.parametrize("backend", API_NAMES)
@pytest.mark.parametrize("client", API_NAMES)
@pytest.mark.parametrize("stream", [False, True])
def test_broken_call_does_not_affect_others(client: ApiName, backend: ApiName, stream: bool) -> None:
    """If one of several calls is broken, the client still receives the other calls. A Responses client also receives
    the broken call, as text.
    """
    steps = [Emitted("add", ARGUMENTS), Emitted("add", "oops"), Emitted("sub", ARGUMENTS)]
    the_plan = request(client, stream, ["add", "sub"], None, {"backend": backend})
    seen, report = answer(the_plan, (BODIES if stream else WHOLE)[backend](steps, "tool_calls"))
    assert [item[1] for item in seen.items if item[0] == "call"] == ["add", "sub"]
    assert ["oops" in item[1] for item in seen.items if item[0] == "text"] == [True] * (client == "responses")
    assert report.dropped_calls == ["STRUCTURED_CALL:add"]
    assert seen.finish in ("tool_calls", "completed")
