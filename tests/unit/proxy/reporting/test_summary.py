"""What is told of one exchange: fields, comment, headers."""

from __future__ import annotations

import json
from typing import Any

from mitmproxy.utils import emoji
from toolsimlib.proxy.reporting.summary import comment, fields, headers, marker
from toolsimlib.report import MAX_NAMES, Report


def full() -> Report:
    return Report(
        client="chat",
        backend="responses",
        model="m",
        stream=True,
        tools=["f", "g"],
        calls=["f", "g"],
        parse_failures=["MALFORMED_JSON"],
        repairs=["trailing comma", "single quotes"],
        tool_cutoff="text after a call",
        truncated=True,
        error="x",
    )


def test_fields() -> None:
    """What is nothing is left out, the count of calls and the status never are."""
    told = fields(full(), 200, 1.23456)
    assert (told["calls"], told["tool_call_count"], told["status"], told["seconds"]) == (["f", "g"], 2, 200, 1.235)
    assert "strict_failures" not in told
    empty = fields(Report(), None, 0)
    assert (empty["tool_call_count"], empty["status"]) == (0, None)


def test_fields_stay_few() -> None:
    """Many names are cut, and all of it is JSON."""
    calls: Any = json.loads(json.dumps(fields(Report(calls=["a"] * 1000), 200, 0)))["calls"]
    assert len(calls) == MAX_NAMES + 1
    assert calls[-1] == f"and {1000 - MAX_NAMES} more"


def test_comment() -> None:
    """One line for people."""
    assert comment(Report(tools=["f"])) == "no call"
    assert comment(Report()) == "no tools"
    assert comment(Report(calls=["a\nb"])) == "1 call: a b"
    assert comment(full(), 200, "What is\nthis?", "#3 turn 2") == (
        "error: x · 2 calls: f, g · 1 parse failure: MALFORMED_JSON · 2 repairs: single quotes, trailing comma · "
        "cut off: text after a call · truncated · #3 turn 2 · “What is this?”"
    )


def test_headers() -> None:
    """Every value is a header's; the cut-off only if there was one."""
    told = headers(full())
    assert told["x-toolsim-tool-call-count"] == "2"
    assert told["x-toolsim-truncated"] == "true"
    assert told["x-toolsim-tool-cutoff"] == "text after a call"
    assert "x-toolsim-tool-cutoff" not in headers(Report())


def test_marker() -> None:
    """What failed for the client is marked, what someone might look at is warned of, all else is left alone."""
    assert marker(Report(), 200) == ""
    assert marker(Report(repairs=["TRAILING_COMMA:f"]), 200) == ""
    assert marker(Report(error="backend_timeout"), 200) == ":x:"
    assert marker(Report(strict_failures=["SCHEMA_MISMATCH:f"]), 200) == ":x:"
    assert marker(Report(), 429) == ":x:"
    assert marker(Report(parse_failures=["UNKNOWN_TOOL:f"]), 200) == ":warning:"
    assert marker(Report(truncated=True), 200) == ":warning:"
    assert marker(Report(warnings=["NO_CALL"]), 200) == marker(Report(warnings=["EMPTY_ANSWER"]), 200) == ":warning:"
    assert marker(Report(warnings=["UNANSWERED_CALL:f"]), 200) == ""
    assert marker(Report(error="aborted"), None) == ":warning:"
    assert {marker(Report(), 500), marker(Report(), None)} <= set(emoji.emoji)


def test_comment_of_a_refusal() -> None:
    """An answer that the backend refused has its status in the comment, unless a reason of our own says more."""
    assert comment(Report(), 429, "Hi", "#1 turn 1") == "HTTP 429 · #1 turn 1 · “Hi”"
    assert comment(Report(error="bad"), 400) == "error: bad"


def test_fields_leave_the_places_of_blocks_out() -> None:
    """The log holds counts and names; where a block stood is for the view."""
    assert "blocks" not in fields(Report(blocks=[{"choice": 0}]), 200, 0)


def test_calls_of_mcp_tools_are_named() -> None:
    """Those that failed with what became of them."""
    report = Report(client="chat", rounds=2, hosted_calls=["OK:files.read", "REFUSED:files.drop"])
    assert "MCP: files.read, REFUSED:files.drop" in comment(report, 200)
