"""Tools that a Messages API client runs itself and declares only by their type."""

from __future__ import annotations

import json
from typing import Any

import anthropic.types.beta as types
import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter
from support.answers import plan as plan_of
from support.answers import read, rewrite
from support.wire import backend_answer
from toolsim.core.plan import Plan
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import rewrite_request
from toolsim.wire.messages.client_tools import client_tool

BASH = {"type": "bash_20250124", "name": "bash"}
EDITOR = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
MEMORY = {"type": "memory_20250818", "name": "memory"}
COMPUTER = {"type": "computer_20251124", "name": "computer", "display_width_px": 1024, "display_height_px": 768}
COMPUTERS = {"type": "computer_toolset_20260801"}
BROWSER = {"type": "browser_toolset_20260801", "configs": {"zoom": {"enabled": False}}}


def planned(*tools: dict[str, Any], messages: Any = None) -> tuple[Plan, str]:
    for tool in tools:
        TypeAdapter(types.BetaToolUnionParam).validate_python(tool)
    body = {
        "model": "m",
        "max_tokens": 9,
        "tools": list(tools),
        "messages": messages or [{"role": "user", "content": "x"}],
    }
    rewritten = rewrite_request(
        "messages", "/v1/messages", json.dumps(body).encode(), Policy(backend="chat"), output_mode=None, report=Report()
    )
    assert rewritten is not None
    return rewritten.plan, rewritten.body.decode()


def test_each_type_becomes_a_function() -> None:
    """Each declared type of tool is converted to a function with a schema. Disabled members of a toolset are
    omitted.
    """
    plan, prompt = planned(BASH, EDITOR, MEMORY, COMPUTER, COMPUTERS, BROWSER)
    names = [tool.name for tool in plan.tools]
    assert names[:4] == ["bash", "str_replace_based_edit_tool", "memory", "computer"]
    assert {"computer__zoom", "browser__left_click"} <= set(names)
    assert "browser__zoom" not in names
    assert "1024 × 768" in prompt
    for tool in plan.tools:
        Draft202012Validator.check_schema(dict(tool.shown_parameters))


@pytest.mark.parametrize("kind", ["Computer", "Browser"])
def test_toolset_members_match_the_sdk(kind: str) -> None:
    """The members of each toolset have the same names and fields as in the SDK."""
    toolset = client_tool({"type": f"{kind.lower()}_toolset_20260801"})
    assert toolset is not None
    members = {tool["function"]["name"]: tool["function"]["parameters"] for tool in toolset["tools"]}
    configs = getattr(types, f"Beta{kind}ToolsetConfigs").model_fields
    assert set(members) == {field.alias or name for name, field in configs.items()}
    for name, schema in members.items():
        words = "".join(word.capitalize() for word in name.split("_"))
        known = TypeAdapter(getattr(types, f"Beta{kind}{words}Input")).json_schema()
        assert set(schema["properties"]) == set(known.get("properties", {}))
        assert set(schema.get("required", ())) == set(known.get("required", ()))


@pytest.mark.parametrize("stream", [False, True])
def test_call_of_a_toolset_member(stream: bool) -> None:
    """A call to a toolset member contains the names of the member and of its toolset, and is recognized in the history
    of a later request.
    """
    plan, _ = planned(COMPUTERS, BASH)
    arguments = {"coordinate": [3, 4]}
    text = f'<tool_call>{{"name":"computer__left_click","arguments":{json.dumps(arguments)}}}</tool_call>'
    asked = plan_of("messages", "chat", stream, plan.tools)
    kind, body = backend_answer("chat", stream, [text])
    _, chunks = rewrite(asked, kind, body)
    assert "left_click" in repr(read("messages", stream, chunks))
    written = b"".join(chunks)
    assert written.count(b'"toolset_name":"computer"') == 1
    use = {"type": "tool_use", "id": "t", "name": "left_click", "toolset_name": "computer", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "Done."}
    history = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    _, prompt = planned(COMPUTERS, messages=history)
    assert '\\"name\\": \\"computer__left_click\\"' in prompt


def test_older_editor_has_undo() -> None:
    """The older type of the text editor tool has another name, and supports the additional command ``undo_edit``."""
    old, new = (
        client_tool({**EDITOR, "type": "text_editor_20250124", "name": "str_replace_editor"}),
        client_tool(EDITOR),
    )
    assert "undo_edit" in json.dumps(old)
    assert "undo_edit" not in json.dumps(new)


@pytest.mark.parametrize("kind", ["bash", "bash_2025", "web_search_20250305", "bash_code_execution_20250825", 3, None])
def test_other_types_are_not_client_tools(kind: object) -> None:
    """Tools that a server runs, and tools of an unknown type, do not count as client tools."""
    assert client_tool({"type": kind, "name": "x"}) is None
