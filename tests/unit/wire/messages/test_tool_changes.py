"""Tool changes during a Messages conversation. A change never modifies the beginning of the prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types.beta import BetaRequestToolAdditionBlockParam, BetaRequestToolRemovalBlockParam
from pydantic import TypeAdapter
from toolsim.core.errors import BadRequest
from toolsim.core.plan import Plan
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import rewrite_request


def tool(name: str, **fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {f"{name}_argument": {"type": "string"}}}
    return {"name": name, "description": f"Does {name}.", "input_schema": schema, **fields}


def adds(**added: Any) -> dict[str, Any]:
    block = {"type": "tool_addition", "tool": added}
    TypeAdapter(BetaRequestToolAdditionBlockParam).validate_python(block)
    return block


def removes(name: str) -> dict[str, Any]:
    block = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}
    TypeAdapter(BetaRequestToolRemovalBlockParam).validate_python(block)
    return block


def defines(name: str) -> dict[str, Any]:
    return adds(type="tool_definition", definition=tool(name))


def refers(name: str) -> dict[str, Any]:
    return adds(type="tool_reference", name=name)


USER, ASSISTANT = {"role": "user", "content": "Go on."}, {"role": "assistant", "content": "I do."}


def system(*blocks: Any) -> dict[str, Any]:
    return {"role": "system", "content": list(blocks)}


def sent(messages: list[Any], tools: list[Any], backend: ApiName = "chat", **fields: Any) -> tuple[Plan, str]:
    """Rewrite a request with the given messages and tools. Return the plan, and the prompt as a single string."""
    body = {"model": "m", "max_tokens": 9, "messages": messages, **({"tools": tools} if tools else {}), **fields}
    data, policy = json.dumps(body).encode(), Policy(backend=backend)
    rewritten = rewrite_request("messages", "/v1/messages", data, policy, output_mode=None, report=Report())
    assert rewritten is not None
    document = json.loads(rewritten.body)
    texts = [document.get("system", document.get("instructions", ""))]
    for message in document.get("messages", document.get("input", ())):
        content = message["content"]
        parts = content if isinstance(content, list) else [{"text": content}]
        texts += [f"{message['role']}:", *(part["text"] for part in parts)]
    return rewritten.plan, "\n".join(texts)


CONVERSATION = [
    [USER],
    [ASSISTANT, USER, system({"type": "text", "text": "A tool is there."}, defines("b"))],
    [ASSISTANT, USER, system(refers("c"))],
    [ASSISTANT, USER, system(removes("a"))],
    [ASSISTANT, USER, system(refers("a"), removes("b"))],
    [ASSISTANT, USER],
]
OFFERED = [{"a", "c"}, {"a", "b", "c"}, {"a", "b", "c"}, {"b", "c"}, {"a", "c"}, {"a", "c"}]


@pytest.mark.parametrize("backend", ["chat", "responses", "messages"])
def test_each_prompt_begins_with_the_previous_one(backend: ApiName) -> None:
    """Each prompt begins with the previous prompt. Only tools that are currently declared can be called."""
    tools = [tool("a"), tool("c", defer_loading=True)]
    messages: list[Any] = []
    before = ""
    for more, offered in zip(CONVERSATION, OFFERED, strict=True):
        messages += more
        plan, prompt = sent(messages, tools, backend)
        assert {found.name for found in plan.tools} == offered
        assert prompt.startswith(before)
        before = prompt
    assert before.count("b_argument") == 1
    assert before.count("c_argument") == 1
    assert before.count("From now on you may not call a.") == before.count("From now on you may not call b.") == 1
    assert before.count("A tool is there.") == 1
    assert before.index("Go on.") < before.index("b_argument")
    assert "tool_addition" not in before
    # When a tool that was withdrawn is added again, its entry is shown again at that point.
    assert before.count("a_argument") == 2


def test_first_added_tools_precede_the_conversation() -> None:
    """If all tools are added by messages during the conversation, the tools that were added first are shown before the
    conversation.
    """
    plan, prompt = sent([USER, system(defines("a"))], [])
    assert [found.name for found in plan.tools] == ["a"]
    assert prompt.index("a_argument") < prompt.index("Go on.")
    plan, _ = sent([system(defines("a"), removes("a"), defines("b")), USER], [tool("c")])
    assert [found.name for found in plan.tools] == ["c", "b"]


def test_irrelevant_changes_have_no_effect() -> None:
    """Tool changes that refer to undeclared tools or to MCP servers have no effect."""
    strange = {"type": "tool_addition", "tool": {"type": "mcp_toolset_reference", "server_name": "s"}}
    plan, prompt = sent([USER, ASSISTANT, USER, system(refers("x"), removes("y"), strange)], [tool("a")])
    assert [found.name for found in plan.tools] == ["a"]
    assert "From now on" not in prompt


def test_bad_changes_name_their_path() -> None:
    """The error for a malformed change gives the change's path in the client's request."""
    with pytest.raises(BadRequest) as refused:
        sent([USER, system({"type": "text", "text": "x"}, {"type": "tool_addition"})], [tool("a")])
    assert refused.value.error.param == "messages[1].content[1].tool"
