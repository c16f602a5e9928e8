"""Formats of an exchange's report: log fields, comment, marker and headers."""

from __future__ import annotations

import json
from typing import Any

from mitmproxy.utils import emoji
from toolsim.core.report import MAX_NAMES, Report
from toolsim.proxy.reporting.summary import comment, fields, first_headers, headers, marker


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
    """Empty fields are omitted from the log, except the number of calls and the status."""
    logged = fields(full(), 200, 1.23456)
    assert (logged["calls"], logged["tool_call_count"]) == (["f", "g"], 2)
    assert (logged["status"], logged["seconds"]) == (200, 1.235)
    assert "strict_failures" not in logged
    empty = fields(Report(), None, 0)
    assert (empty["tool_call_count"], empty["status"]) == (0, None)


def test_long_lists_are_truncated() -> None:
    """In the log fields of a turn, long lists of names are truncated, and all values can be encoded as JSON."""
    calls: Any = json.loads(json.dumps(fields(Report(calls=["a"] * 1000), 200, 0)))["calls"]
    assert len(calls) == MAX_NAMES + 1
    assert calls[-1] == f"and {1000 - MAX_NAMES} more"


def test_comment() -> None:
    """A flow's comment is a single human-readable line with the most important facts first."""
    assert comment(Report(tools=["f"])) == "no call"
    assert comment(Report()) == "no tools"
    assert comment(Report(calls=["a\nb"])) == "1 call: a b"
    assert comment(full(), 200, "What is\nthis?", "#3 turn 2") == (
        "error: x · 2 calls: f, g · 1 parse failure: MALFORMED_JSON · 2 repairs: single quotes, trailing comma · "
        "cut off: text after a call · truncated · #3 turn 2 · m chat · “What is this?”"
    )
    assert comment(Report(tools=["f"], calls=["f"], untagged=["UNTAGGED_BARE:f"])) == "1 call: f"
    assert comment(Report(tools=["f"], warnings=["EMPTY_ANSWER"])) == (
        "no call · 1 warning: EMPTY_ANSWER · toolsim_fix_empty_final=on retries after a tool output"
    )


def test_headers() -> None:
    """The report's values are valid in HTTP headers. ``x-toolsim-tool-cutoff`` is present only if text was cut off."""
    sent = headers(full())
    assert sent["x-toolsim-tool-call-count"] == "2"
    assert sent["x-toolsim-truncated"] == "true"
    assert sent["x-toolsim-tool-cutoff"] == "text after a call"
    assert "x-toolsim-tool-cutoff" not in headers(Report())
    assert "x-toolsim-usage" not in sent
    assert headers(Report(usage_estimated=True))["x-toolsim-usage"] == "estimated"


def test_marker() -> None:
    """A failed answer is marked with a cross. An answer with any other problem is marked with a warning sign, and a
    normal answer is not marked.
    """
    assert marker(Report(), 200) == ""
    assert marker(Report(repairs=["TRAILING_COMMA:f"]), 200) == ""
    assert marker(Report(error="backend_timeout"), 200) == ":heavy_multiplication_x:"
    assert marker(Report(strict_failures=["SCHEMA_MISMATCH:f"]), 200) == ":heavy_multiplication_x:"
    assert marker(Report(), 429) == ":heavy_multiplication_x:"
    assert marker(Report(parse_failures=["UNKNOWN_TOOL:f"]), 200) == ":warning:"
    assert marker(Report(truncated=True), 200) == ":warning:"
    assert marker(Report(warnings=["SCHEMA_MISMATCH:f"]), 200) == ":warning:"
    assert marker(Report(error="aborted"), None) == ":warning:"
    assert {marker(Report(), 500), marker(Report(), None)} <= set(emoji.emoji)


def test_comment_of_a_refusal_contains_the_status() -> None:
    """The comment on a refused request states the status, unless toolsim knows a more specific reason."""
    assert comment(Report(), 429, "Hi", "#1 turn 1") == "HTTP 429 · #1 turn 1 · “Hi”"
    assert comment(Report(error="bad"), 400) == "error: bad"


def test_fields_omit_block_positions() -> None:
    """The log does not contain the positions of tool call blocks in the answer, because only the content view uses
    them.
    """
    assert "blocks" not in fields(Report(blocks=[{"choice": 0}]), 200, 0)


def test_mcp_calls_are_named() -> None:
    """The comment names each MCP call and, if the call failed, its outcome, such as ``REFUSED``."""
    report = Report(client="chat", rounds=2, mcp_calls=["OK:files.read", "REFUSED:files.drop"])
    assert "MCP: files.read, REFUSED:files.drop" in comment(report, 200)


def test_replaced_outputs_are_counted_in_a_header() -> None:
    """A header reports how many tool outputs were replaced because of their size, even in a streamed answer."""
    assert first_headers(Report(outputs_replaced=2))["x-toolsim-outputs-replaced"] == "2"
    assert "x-toolsim-outputs-replaced" not in first_headers(Report())
