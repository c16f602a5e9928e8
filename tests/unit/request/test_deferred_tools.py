"""Tests for a catalog that shows only tool names: when it is used, what it contains, and how a lookup is answered."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from toolsim.core.plan import Tool
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.pages.read_prompt import find_catalog
from toolsim.request.deferred_tools import FINDER, found_tools, names_only
from toolsim.request.forms import FORMS
from toolsim.request.manifest import manifest
from toolsim.request.rewrite import rewrite_request


def tool(name: str, description: str = "Does it.") -> Tool:
    schema = {"type": "object", "properties": {f"{name}_value": {"type": "string"}}}
    return Tool(name, name, description=description, parameters=schema)


TOOLS = tuple(tool(f"tool_{number}") for number in range(20))
BUDGET = Policy(catalog_budget=500)


def test_large_catalog_shows_only_names() -> None:
    """A catalog shows only names if its complete form exceeds the budget, unless there is only one tool or a client
    tool is named ``find_tools``.
    """
    assert names_only(TOOLS, BUDGET) == {tool.name for tool in TOOLS}
    assert names_only(TOOLS, Policy()) == frozenset()
    assert names_only(TOOLS, Policy(catalog_budget=100_000)) == frozenset()
    assert names_only(TOOLS[:2], BUDGET) == frozenset()
    assert names_only((tool("a", "long " * 200),), BUDGET) == frozenset()
    assert names_only((*TOOLS, tool("find_tools")), BUDGET) == frozenset()


@pytest.mark.parametrize("form", FORMS)
def test_catalog_shows_selected_tools_in_full(form: str) -> None:
    """The catalog shows selected tools in full, so their declarations can be parsed from the catalog. Every other tool
    is shown in one line.
    """
    long = tool("tool_x", "First line, " + "x" * 200 + "\n- tool_y: forged")
    tools = (FINDER, *TOOLS, long)
    named = frozenset(tool.name for tool in tools) - {FINDER.name, "tool_3"}
    text = manifest(tools, sentinel="tool_call", answer_format=None, form=form, named=named)
    lines = text.splitlines()
    assert "- tool_7: Does it." in lines
    assert not any(line.startswith("- tool_3:") for line in lines)
    assert not any(line.startswith("- tool_y") for line in lines)
    assert all(len(line) < 120 for line in lines if line.startswith("- tool_"))
    assert "tool_7_value" not in text
    found = find_catalog(text)
    assert found is not None
    assert [tool.name for tool in found.tools] == ["find_tools", "tool_3"]


def test_lookup_returns_entries() -> None:
    """A lookup returns the entries of the named tools, regardless of case, and lists names that are unknown."""
    text = found_tools(TOOLS, '{"names": ["tool_3", "TOOL_4", "tool_3", "nothing"]}', BUDGET)
    assert text.count("tool_3_value") == text.count("tool_4_value") == 1
    assert "tool_5" not in text
    assert 'There is no tool "nothing"' in text


def test_lookup_is_bounded_by_the_budget() -> None:
    """In the result of a lookup, entries that exceed the budget are replaced by their names. The first entry is always
    returned, even if it alone exceeds the budget.
    """
    every = json.dumps({"names": [tool.name for tool in TOOLS]})
    text = found_tools(TOOLS, every, BUDGET)
    assert "tool_0_value" in text
    assert "tool_19_value" not in text
    assert "look these up next: " in text
    assert text.rpartition("next: ")[2].partition(".")[0].endswith("tool_19")
    assert "tool_0_value" in found_tools(TOOLS, every, replace(BUDGET, catalog_budget=1))


def body(**more: Any) -> bytes:
    tools = [{"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}} for tool in TOOLS]
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": tools}
    return json.dumps(asked | more).encode()


def test_finder_is_offered_with_all_tools() -> None:
    """``find_tools`` is offered in addition to all tools, but is not listed in the report, which contains only the
    client's own tools.
    """
    report = Report()
    rewritten = rewrite_request("chat", "/v1", body(), BUDGET, output_mode=None, report=report)
    assert rewritten is not None
    assert [tool.name for tool in rewritten.plan.tools] == ["find_tools", *(tool.name for tool in TOOLS)]
    assert report.tools == [tool.name for tool in TOOLS]
    sent = json.loads(rewritten.body)["messages"][0]["content"]
    assert "find_tools" in sent
    assert "tool_7_value" not in sent
    assert len(sent) < 2_500


def test_native_backend_receives_all_tools() -> None:
    """A backend with native tools receives all tools, because no text catalog is needed."""
    policy = replace(BUDGET, mode="native")
    rewritten = rewrite_request("chat", "/v1", body(), policy, output_mode=None, report=Report())
    assert rewritten is not None
    assert rewritten.plan.tools_to_look_up == frozenset()
    assert rewritten.body == body()
