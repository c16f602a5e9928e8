"""Tests for each transform and preset, alone and as part of a complete rewrite."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.answers import plan as make_plan
from toolsim.core.plan import Tool
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import rewrite_request
from toolsim.request.transforms import BUILT_IN, NAMES, PRESETS, compact, expand
from toolsim.response.rewrite import ResponseRewriter

CALL: dict[str, Any] = {"id": "call_001", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ENVELOPE = '{"ok": true, "data": {"a": 1}, "warnings": [], "errors": []}'
COMPACT = '{"ok":true,"data":{"a":1}}'
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": " \n", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_001", "content": ENVELOPE},
        {"role": "assistant", "content": "ok"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "Does it."}}],
}


def sent(api_name: ApiName = "chat", body: dict[str, Any] = BODY, **policy: Any) -> dict[str, Any]:
    """Return the request that the backend receives."""
    policy["transforms"] = expand(policy.get("transforms", ()))
    data = json.dumps(body).encode()
    rewritten = rewrite_request(api_name, "/v1", data, Policy(**policy), output_mode=None, report=Report())
    assert rewritten is not None
    found: dict[str, Any] = json.loads(rewritten.body)
    return found


def native(*names: str) -> dict[str, Any]:
    return sent(mode="native", transforms=names)


def test_body_is_unchanged_without_transforms() -> None:
    """Without transforms, a body in native mode is passed on unchanged. The names of changes that toolsim always makes
    are accepted as transforms, but have no effect on the body.
    """
    assert native() == BODY
    for name in BUILT_IN:
        assert native(name) == BODY


def test_blank_content_is_null() -> None:
    """Blank content is replaced with null, but only in messages with calls."""
    _, called, _, spoke = native("assistant_tool_calls_content_null_if_blank")["messages"]
    assert called == {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert spoke == BODY["messages"][3]


def test_missing_reasoning_is_empty() -> None:
    """The empty reasoning field that DeepSeek requires is added to messages with calls. Other messages remain
    unchanged.
    """
    _, called, _, spoke = native("assistant_tool_calls_reasoning_content_empty_if_missing")["messages"]
    assert called["reasoning_content"] == ""
    assert "reasoning_content" not in spoke


def test_missing_signatures_are_skipped() -> None:
    """Calls without a thought signature receive a placeholder that Gemini accepts. Existing signatures are kept."""
    name = "assistant_tool_calls_signature_skip_validator_if_missing"
    google = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert native(name)["messages"][1]["tool_calls"] == [CALL | {"extra_content": google}]
    own = CALL | {"extra_content": {"google": {"thought_signature": "s"}}}
    body = BODY | {"messages": [{"role": "assistant", "content": "", "tool_calls": [own]}]}
    assert sent(body=body, mode="native", transforms=[name])["messages"][0]["tool_calls"] == [own]


@pytest.mark.parametrize("mode", ["native", "inject"])
def test_descriptions_are_left_out(mode: str) -> None:
    """The transform removes descriptions from native tools and from the manifest."""
    assert "Does it." in json.dumps(sent(mode=mode))
    assert "Does it." not in json.dumps(sent(mode=mode, transforms=["openai_tools_strip_function_descriptions"]))


@pytest.mark.parametrize(("api_name", "mode"), [("chat", "native"), ("chat", "inject"), ("responses", "inject")])
def test_outputs_are_compact(mode: str, api_name: ApiName) -> None:
    """Empty fields are removed from the JSON envelope of a tool output, such as ``{"ok": …, "data": …}``, both in
    records and in native messages.
    """
    output = {"type": "function_call_output", "call_id": "fc_001", "output": ENVELOPE}
    asked = {"model": "m", "input": [output], "tools": [{"type": "function", "name": "f"}]}
    body = BODY if api_name == "chat" else asked
    written = json.dumps(sent(api_name, body, mode=mode, transforms=["tool_result_compact_envelope"]))
    assert COMPACT.replace('"', '\\"') in written


@pytest.mark.parametrize(
    ("output", "written"),
    [
        (ENVELOPE, COMPACT),
        ('{"ok":false,"data":null,"errors":["é"]}', '{"ok":false,"errors":["é"]}'),
        ('{"data": null}', '{"data": null}'),
        ("[1, 2]", "[1, 2]"),
        ("no JSON", "no JSON"),
    ],
)
def test_only_envelopes_are_compacted(output: str, written: str) -> None:
    """Only a tool output in the form of an envelope, such as ``{"ok": …, "data": …}``, is compacted. All other outputs
    are kept verbatim.
    """
    assert compact(output) == written


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_contain_existing_transforms(preset: str) -> None:
    assert expand([preset]) == frozenset(PRESETS[preset])
    assert expand([preset]) <= set(NAMES)


def test_unknown_transforms_are_refused() -> None:
    """The error for an unknown transform lists the known names."""
    with pytest.raises(ValueError, match="got 'x', expected one of openai_compatible_reliability"):
        expand(["openai_compatible_reliability", "x"])
    assert expand(()) == frozenset()


def test_operator_fields_reach_the_backend() -> None:
    """The fields in the operator's defaults and overrides are sent to the backend, with native tools and with tools as
    text.
    """
    for mode in ("native", "inject"):
        body = sent(mode=mode, request_overrides='{"top_p": 0.5}', request_defaults='{"top_k": 3}')
        assert (body["top_p"], body["top_k"], body["model"]) == (0.5, 3, "m")


@pytest.mark.parametrize(
    "message",
    [
        {"function_call": {"name": "f", "arguments": '{"a":1}'}},
        {"tool_calls": {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}},
        {"tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"content": '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'},
        {"tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": " "}}]},
    ],
    ids=BUILT_IN,
)
def test_nonstandard_calls_are_read_without_an_option(message: dict[str, Any]) -> None:
    """Every known nonstandard format of calls in a backend's answer is parsed, even if no option is set."""
    plan = make_plan("chat", "chat", False, [Tool("f", "f")])
    answer = {"choices": [{"index": 0, "message": {"role": "assistant"} | message, "finish_reason": "stop"}]}
    rewriter = ResponseRewriter(plan, Report(), content_type="application/json")
    [body] = rewriter.feed(json.dumps(answer).encode()) + rewriter.feed(b"")
    [call] = json.loads(body)["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "f"
    assert json.loads(call["function"]["arguments"]) in ({"a": 1}, {})
