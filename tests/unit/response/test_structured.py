"""Tests for items in a backend's answer that are calls to client tools, such as shell calls. An item is passed on only
if its tool is offered.
"""

from __future__ import annotations

from typing import Any

from support.answers import plan, tool
from support.each import each
from support.turns import run_events
from toolsim.core.events import (
    BackendEvent,
    Closed,
    Ended,
    Failed,
    Finished,
    HostedEnded,
    HostedProgress,
    HostedStarted,
    PassThrough,
    TextDelta,
)
from toolsim.core.plan import Tool
from toolsim.wire.local_tools import local_tool

SHELL = {"type": "shell_call", "action": {"commands": ["rm x"]}, "environment": {"type": "local"}}
COMPUTER = {"type": "computer_call", "action": {"type": "click"}}
ADD = tool("add", a="number")
DECLARED = local_tool({"type": "shell"})


def play(item: dict[str, Any], announced: bool, tools: list[Tool], **policy: Any) -> tuple[list[Any], Any]:
    progress: list[BackendEvent] = [
        HostedStarted("0", item),
        HostedProgress("0", "response.shell_call.delta"),
        HostedEnded("0", item),
    ]
    events = progress if announced else [PassThrough(item)]
    emitted, report, _ = run_events(
        plan("responses", "responses", True, tools, policy=policy), [*events, Finished("stop"), Closed()]
    )
    return emitted, report


@each("announced", [True, False])
@each(
    ("item", "tools", "policy"),
    [
        (SHELL, [ADD], {}),
        (SHELL, [ADD], {"unknown_tool": "call", "tool_denylist": frozenset({"shell"})}),
        (SHELL, [ADD], {"unknown_tool": "call", "tool_allowlist": frozenset({"add"})}),
        (COMPUTER, [ADD], {"tool_allowlist": frozenset({"add"})}),
        (COMPUTER, [ADD], {"tool_denylist": frozenset({"computer_use_preview"})}),
    ],
)
def test_item_of_an_unoffered_tool_is_text(
    item: dict[str, Any], tools: list[Tool], policy: dict[str, Any], announced: bool
) -> None:
    """If an item is a call to a tool that is not offered, it reaches the client as text, and is counted as dropped."""
    emitted, report = play(item, announced, tools, **policy)
    assert [type(event) for event in emitted] == [TextDelta, Ended]
    assert "rm x" in emitted[0].text or "click" in emitted[0].text
    assert report.dropped_calls[0].startswith("STRUCTURED_CALL:")


@each("announced", [True, False])
@each(
    ("item", "tools", "policy"),
    [
        (SHELL, [ADD, DECLARED], {}),
        (SHELL, [ADD], {"unknown_tool": "call"}),
        ({**SHELL, "environment": {"type": "container_reference"}}, [ADD], {"tool_denylist": frozenset({"shell"})}),
        (COMPUTER, [ADD], {}),
        ({"type": "web_search_call"}, [ADD], {"tool_denylist": frozenset({"web_search"})}),
    ],
)
def test_item_of_an_offered_or_hosted_tool_passes(
    item: dict[str, Any], tools: list[Tool], policy: dict[str, Any], announced: bool
) -> None:
    """An item is passed on unchanged if it is a call to an offered tool, or if the backend has run the tool."""
    emitted, report = play(item, announced, tools, **policy)
    assert [event.item for event in emitted if isinstance(event, HostedEnded | PassThrough)] == [item]
    assert report.dropped_calls == []


def test_unoffered_item_next_to_a_strict_tool_is_a_violation() -> None:
    """If any tool is strict, an item that is a call to a tool that is not offered is a violation."""
    emitted, _ = play(SHELL, True, [tool("add", True, a="number")])
    assert isinstance(emitted[0], Failed)


def test_shell_item_becomes_a_call_of_a_function_named_shell() -> None:
    """If the client declared a function named ``shell``, an item for a shell call becomes a call to that function."""
    emitted, report = play(SHELL, True, [Tool("shell", "shell")])
    assert report.calls == ["shell"]
    assert not any(isinstance(event, HostedEnded) for event in emitted)
