"""Tests for finding tools by name, in every spelling and for every kind of call."""

from __future__ import annotations

from typing import Any

import pytest
from support.answers import plan
from support.each import each
from toolsim.core.plan import Tool, ToolChoice
from toolsim.response.toolbox import Lookup, Toolbox
from toolsim.response.verdict import TOOL_NAME

ADD = Tool("add", "add")
READ = Tool("fs__read", "read", namespace="fs")
MASKED, UNKNOWN = Lookup(reason="MASKED_TOOL"), Lookup()


def box(
    masked: tuple[str, ...] = (),
    tool_choice: ToolChoice | None = None,
    retries_allowed: frozenset[str] = frozenset(),
    **policy: Any,
):
    fields = {
        "policy": policy,
        "masked_tools": frozenset(masked),
        "tool_choice": tool_choice or ToolChoice(),
        "retries_allowed": retries_allowed,
    }
    return Toolbox(plan("responses", "chat", True, [ADD, READ], **fields))


@pytest.mark.parametrize(
    ("name", "namespace", "tool", "inexact"),
    [
        ("add", None, ADD, False),
        ("fs__read", None, READ, False),
        ("read", "fs", READ, False),
        ("read", None, READ, False),
        ("functions.add", None, ADD, True),
        ("add", "functions", ADD, True),
        ("READ", "fs", READ, True),
        ("read", "web", None, False),
        ("add", "fs", None, False),
    ],
)
def test_structured_calls_are_matched(name: str, namespace: str | None, tool: Tool | None, inexact: bool) -> None:
    """A structured call is matched to a tool by the name that the model uses, by namespace and name, or by a misspelled
    name that can be repaired.
    """
    assert box().called(name, namespace) == Lookup(tool, codes=(TOOL_NAME,) if inexact else ())
    strictly = box(repair="off").called(name, namespace)
    assert strictly == (UNKNOWN if inexact else Lookup(tool))


@each("repair", ["safe", "off"])
@each(
    ("name", "namespace"),
    [
        ("rm", None),
        (" RM ", None),
        ("functions.rm:0", None),
        ("rm", "functions"),
        ("rm", "fs"),
        ("fs__drop", None),
        ("fs.drop", None),
        ("drop", None),
        ("Drop", None),
        ("drop", "fs"),
        ("DROP", "FS"),
    ],
)
def test_masked_tool_is_recognized_in_every_spelling(name: str, namespace: str | None, repair: str) -> None:
    """A denied or otherwise masked tool is recognized in every spelling of its name."""
    tools = box(("fs__drop",), tool_denylist=frozenset({"rm"}), unknown_tool="call", repair=repair)
    assert tools.called(name, namespace) == MASKED
    if namespace is None:
        assert tools.written(name) == MASKED


def test_masked_name_does_not_hide_an_offered_tool() -> None:
    """An offered tool is found by its short name even if a masked tool in another namespace has the same short name."""
    tools = box(("web__read", "web__add"))
    assert tools.called("read", None) == Lookup(READ)
    assert tools.called("add", None) == Lookup(ADD)
    assert tools.called("read", "web") == MASKED
    assert box(("read",)).called("read", None) == MASKED


@each(
    ("limits", "passes"),
    [
        ({}, True),
        ({"tool_allowlist": frozenset({"add", "read"})}, False),
        ({"tool_allowlist": frozenset({"add", "own"})}, True),
        ({"tool_choice": ToolChoice("required", frozenset({"add"}))}, False),
        ({"tool_choice": ToolChoice("auto", frozenset({"add", "fs__read"}))}, False),
        ({"tool_choice": ToolChoice("none")}, False),
        ({"tool_choice": ToolChoice("required")}, True),
        ({"tool_denylist": frozenset({"own"})}, False),
        ({"tool_denylist": frozenset({"OWN", "Own"})}, False),
        ({"retries_allowed": frozenset({"UNKNOWN_TOOL"})}, False),
    ],
)
def test_unknown_tools_pass_unless_excluded(limits: dict[str, Any], passes: bool) -> None:
    """With ``unknown_tool=call``, a call to an undeclared tool is passed on unless the tool choice or a list excludes
    the tool. Without the option, no such call is passed on.
    """
    tools = box(unknown_tool="call", **limits)
    assert tools.called("own", None).may_pass is tools.written("own").may_pass is passes
    assert not box(**limits).called("own", None).may_pass
    assert not tools.called("own\n", None).may_pass


def test_ambiguous_name_is_unknown() -> None:
    """A name is treated as unknown if it matches both a masked and an offered tool."""
    tools = box(("ADD",), unknown_tool="call")
    assert tools.written("Add") == UNKNOWN
    assert tools.offers("add")
    assert not tools.offers("Add")
