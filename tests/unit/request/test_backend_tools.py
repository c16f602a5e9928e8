"""Tests for hosted tools, which the backend runs. They are forwarded to the backend, or the client learns that they
were dropped.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.each import each
from toolsim.core.errors import BadRequest
from toolsim.core.plan import StoredAs
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import Rewritten, rewrite_request

# All hosted tool types in OpenAI's type definitions for the Responses API, plus an unknown type.
HOSTED: list[dict[str, Any]] = [
    {"type": "mcp", "server_label": "docs", "server_url": "https://x.example/mcp"},
    {"type": "web_search"},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "image_generation"},
    {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "linux"},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "tool_search"},
    {"type": "of_tomorrow"},
]
SEARCH, MCP = HOSTED[1], HOSTED[0]
F = {"type": "function", "name": "f", "parameters": {"type": "object"}}
HISTORY = [
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "1"},
]
USER = {"role": "user", "content": "hi"}
API_NAMES: tuple[ApiName, ...] = ("chat", "responses")
every_hosted = each("tool", HOSTED, ids=lambda tool: tool["type"])


def rewrite(client: ApiName, policy: Policy | None = None, **fields: Any) -> tuple[Rewritten | None, Report, bytes]:
    body = {"model": "m", **({"messages": [USER]} if client == "chat" else {"input": [USER]}), **fields}
    kept = body.pop("kept", None)
    data, report = json.dumps(body).encode(), Report()
    made = rewrite_request(client, "/v1", data, policy or Policy(), output_mode=None, report=report, stored_as=kept)
    return made, report, data


def refusal(client: ApiName, policy: Policy | None = None, **fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        rewrite(client, policy, **fields)
    return caught.value


@every_hosted
@each("client", API_NAMES)
def test_hosted_tools_alone_pass_byte_for_byte(client: ApiName, tool: dict[str, Any]) -> None:
    """A request with only hosted tools is forwarded byte for byte, because the backend might support them."""
    for choice in ("auto", "required", {"type": tool["type"]}):
        made, report, _ = rewrite(client, tools=[tool], tool_choice=choice, max_tool_calls=3)
        assert made is None
        assert report == Report(model="m")


@every_hosted
def test_hosted_tools_alone_stay_in_a_changed_request(tool: dict[str, Any]) -> None:
    """toolsim changes a request without functions if the history contains calls or if the answer will be stored. Even
    then, hosted tools and the tool choice remain unchanged.
    """
    fields = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "max_tool_calls": 3}
    for more in ({"input": [USER, *HISTORY]}, {"kept": StoredAs("resp_1")}):
        made, report, _ = rewrite("responses", **fields, **more)
        assert made is not None
        body = json.loads(made.body)
        assert {key: body.get(key) for key in fields} == fields
        assert (report.dropped, report.warnings) == ([], [])
    output = {"role": "tool", "tool_call_id": "c", "content": "1"}
    made, _, _ = rewrite("chat", tools=[tool], tool_choice="required", messages=[USER, output])
    assert made is not None
    assert json.loads(made.body)["tool_choice"] == "required"


@every_hosted
@each("client", API_NAMES)
def test_hosted_tool_is_rejected_for_another_api(client: ApiName, tool: dict[str, Any]) -> None:
    """A request with a hosted tool is rejected if the backend has a different API than the client. If the client's tool
    choice forbids calls, the hosted tool is dropped instead.
    """
    other: ApiName = "chat" if client == "responses" else "responses"
    error = refusal(client, Policy(backend=other, forward_hosted_tools=True), tools=[tool]).error
    assert (error.status, error.param) == (400, "tools")
    for part in (tool["type"], client, other, "toolsim_backend"):
        assert part in error.message
    assert ("toolsim_mcp_hosts" in error.message) == (tool["type"] == "mcp")
    made, report, _ = rewrite(client, Policy(backend=other), tools=[tool], tool_choice="none")
    assert made is not None
    assert (report.dropped, report.warnings) == ([f"tool:{tool['type']}"], [])


@every_hosted
@each("client", API_NAMES)
@each("backend", API_NAMES)
def test_hosted_tool_next_to_functions_is_dropped(client: ApiName, backend: ApiName, tool: dict[str, Any]) -> None:
    """If a request also has functions, its hosted tools are dropped with a warning. With forwarding enabled, a backend
    with the same API receives the hosted tools.
    """
    for forwards in (False, True):
        made, report, _ = rewrite(client, Policy(backend=backend, forward_hosted_tools=forwards), tools=[F, tool])
        assert made is not None
        passes = forwards and client == backend
        assert json.loads(made.body).get("tools") == ([tool] if passes else None)
        assert report.warnings == ([] if passes else [f"TOOL_DROPPED:{tool['type']}"])
        assert report.dropped == ([] if passes else [f"tool:{tool['type']}"])


@each("backend", API_NAMES)
def test_function_only_for_programs_is_dropped(backend: ApiName) -> None:
    """A function that only programs can call is dropped and reported, as is the tool that runs programs. If a request
    has no other tools, both tools are forwarded to a backend with the same API.
    """
    direct = {**F, "name": "g", "allowed_callers": ["direct", "programmatic"]}
    runner, inner = {"type": "programmatic_tool_calling"}, {**F, "allowed_callers": ["programmatic"]}
    space = {"type": "namespace", "name": "n", "tools": [{**F, "name": "h"}, inner]}
    made, report, _ = rewrite("responses", Policy(backend=backend), tools=[inner, direct, runner, space])
    assert made is not None
    assert [tool.name for tool in made.plan.tools] == ["g", "n__h"]
    assert report.warnings == ["TOOL_DROPPED:f", "TOOL_DROPPED:programmatic_tool_calling"]
    assert rewrite("responses", tools=[inner, runner])[0] is None
    assert (
        "(f, programmatic_tool_calling)"
        in refusal("responses", Policy(backend="chat"), tools=[inner, runner]).error.message
    )
    assert refusal("responses", tools=[direct, inner], tool_choice={"type": "function", "name": "f"}).error.param


@every_hosted
@each("way", ["named", "allowed"])
def test_choice_of_a_dropped_tool_is_rejected(tool: dict[str, Any], way: str) -> None:
    """A tool choice is rejected if it names a dropped tool or allows only dropped tools. A choice that also allows a
    function is accepted.
    """
    named = {key: value for key, value in tool.items() if key in ("type", "server_label")}
    wanted = named if way == "named" else {"type": "allowed_tools", "mode": "auto", "tools": [named]}
    error = refusal("responses", tools=[F, tool], tool_choice=wanted).error
    assert (error.status, error.param) == (400, "tool_choice")
    assert tool["type"] in error.message
    assert "toolsim_forward_hosted_tools" in error.message
    made, report, _ = rewrite("responses", Policy(forward_hosted_tools=True), tools=[F, tool], tool_choice=wanted)
    assert made is not None
    assert json.loads(made.body)["tool_choice"] == wanted
    assert report.dropped == []
    both = {"type": "allowed_tools", "mode": "auto", "tools": [named, {"type": "function", "name": "f"}]}
    made, report, _ = rewrite("responses", tools=[F, tool], tool_choice=both)
    assert made is not None
    assert report.warnings == [f"TOOL_DROPPED:{tool['type']}"]


@each("mode", ["inject", "native"])
@each("forwards", [False, True])
@each(
    ("lists", "left"),
    [
        ({"tool_denylist": frozenset({"web_search"})}, [MCP]),
        ({"tool_denylist": frozenset({"docs"})}, [SEARCH]),
        ({"tool_denylist": frozenset({"mcp", "web_search"})}, []),
        ({"tool_allowlist": frozenset({"f"})}, []),
        ({"tool_allowlist": frozenset({"f", "web_search"})}, [SEARCH]),
        ({"tool_allowlist": frozenset({"f", "docs"})}, [MCP]),
    ],
)
def test_operator_lists_apply_to_hosted_tools(
    lists: dict[str, Any], left: list[dict[str, Any]], forwards: bool, mode: Any
) -> None:
    """A hosted tool is dropped if the operator's lists of allowed and denied tools exclude it. A tool choice that
    requires a dropped tool is rejected.
    """
    policy = Policy(**lists, forward_hosted_tools=forwards, mode=mode)
    for functions in ([], [F]):
        made, report, _ = rewrite("responses", policy, tools=[*functions, SEARCH, MCP])
        assert made is not None
        passed = [tool for tool in json.loads(made.body).get("tools", []) if tool != F]
        assert passed == (left if not functions or forwards or mode == "native" else [])
        assert "TOOL_DROPPED:mcp" not in report.warnings or MCP in left
        assert [note for note in report.dropped if note == "tool:web_search"] == ["tool:web_search"] * (
            SEARCH not in passed
        )
        for tool in (SEARCH, MCP):
            if tool not in left:
                error = refusal("responses", policy, tools=[*functions, SEARCH, MCP], tool_choice=tool).error
                assert "toolsim_tool_allowlist" in error.message
        if not left and not functions:
            assert refusal("responses", policy, tools=[SEARCH, MCP], tool_choice="required").error.status == 400
