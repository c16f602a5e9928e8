"""The human-readable log line of a turn."""

from __future__ import annotations

from typing import Any

import pytest
from support.each import each
from toolsim.core.report import Report
from toolsim.proxy.reporting.summary import log_line, printable

CHAT: dict[str, Any] = {"client": "chat", "backend": "chat", "model": "llama3"}


@each(
    ("fields", "status", "line"),
    [
        (
            {"stream": True, "tools": ["a", "b"], "calls": ["search_notes", "get_weather"]},
            200,
            "✓ llama3 · chat stream · 2 calls search_notes, get_weather · 1.2 s",
        ),
        ({"tools": ["a", "b", "c"]}, 200, "✓ llama3 · chat · no call, 3 tools · 1.2 s"),
        ({"tools": ["a"], "backend": "responses"}, 200, "✓ llama3 · chat over responses · no call, 1 tool · 1.2 s"),
        ({"backend": ""}, 200, "✓ llama3 · chat · no tools · 1.2 s"),
        ({"model": ""}, 200, "✓ no model · chat · no tools · 1.2 s"),
        (
            {
                "tools": ["f"],
                "strict_failures": ["SCHEMA_MISMATCH:f"],
                "mismatches": ["f:/days: got string, expected integer"],
                "error": "invalid_tool_call",
            },
            422,
            "✗ llama3 · chat · SCHEMA_MISMATCH f: /days: got string, expected integer · 1.2 s",
        ),
        (
            {
                "tools": ["f"],
                "calls": ["f"],
                "warnings": ["SCHEMA_MISMATCH:f"],
                "mismatches": ["f:/: lacks city"],
            },
            200,
            "⚠ llama3 · chat · 1 call f · SCHEMA_MISMATCH f: /: lacks city · 1.2 s",
        ),
        (
            {"tools": ["f"], "parse_failures": ["UNKNOWN_TOOL:g"]},
            200,
            "⚠ llama3 · chat · no call, 1 tool · UNKNOWN_TOOL g · 1.2 s",
        ),
        (
            {"tools": ["f"], "calls": ["f"], "repairs": ["quotes:f", "comma:f"], "tool_cutoff": "text after tools"},
            200,
            "✓ llama3 · chat · 1 call f · repaired f · ended early: text after tools · 1.2 s",
        ),
        (
            {"tools": ["f"], "warnings": ["EMPTY_ANSWER"]},
            200,
            "⚠ llama3 · chat · no call, 1 tool · EMPTY_ANSWER"
            " · toolsim_fix_empty_final=on retries after a tool output · 1.2 s",
        ),
        (
            {"tools": ["f"], "warnings": ["EMPTY_ANSWER"], "retries": ["EMPTY_ANSWER"]},
            200,
            "⚠ llama3 · chat · no call, 1 tool · EMPTY_ANSWER · retried EMPTY_ANSWER · 1.2 s",
        ),
        (
            {"tools": ["f"], "calls": ["f"], "untagged": ["UNTAGGED_BARE:f"]},
            200,
            "✓ llama3 · chat · 1 call f · 1.2 s",
        ),
        ({"tools": ["f"], "truncated": True}, 200, "⚠ llama3 · chat · no call, 1 tool · truncated · 1.2 s"),
        (
            {"tools": ["f"], "calls": ["f"], "rounds": 2, "retries": ["MALFORMED_JSON:f"]},
            200,
            "✓ llama3 · chat · 1 call f · retried MALFORMED_JSON:f · 2 rounds · 1.2 s",
        ),
        ({"tools": ["f"], "round": 2, "part_of": "x"}, 200, "✓ llama3 · chat · no call, 1 tool · round 2 · 1.2 s"),
        ({"error": "backend_timeout", "stream": True}, 200, "✗ llama3 · chat stream · backend_timeout · 1.2 s"),
        ({"error": "aborted", "tools": ["f"]}, None, "⚠ llama3 · chat · client disconnected · 1.2 s"),
        ({}, 404, "✗ llama3 · chat · HTTP 404 model 'llama3' not found · 1.2 s"),
    ],
)
def test_line(fields: dict[str, Any], status: int | None, line: str) -> None:
    """The log line of a turn shows a symbol such as ``✗``, the model, the API, the outcome and the time."""
    problem = "model 'llama3' not found" if status == 404 else ""
    assert log_line(Report(**CHAT | fields), status, 1.23, problem=problem) == line


def test_passed_request_is_shown_without_tools() -> None:
    """The log line of a request that was passed on unchanged states that it had no tools."""
    assert "· no tools ·" in log_line(Report(**CHAT), 200, 0, is_ours=False)


def test_control_characters_in_names_are_replaced() -> None:
    """Control characters in names from models and clients are replaced, and the length of the line is limited."""
    wild = "\x1b[31m\nred\u2028\ud800\u202e" + "x" * 1000
    report = Report(client="chat", model=wild, calls=[wild] * 1000, warnings=[f"C:{wild}"] * 9, repairs=[f"R:{wild}"])
    line = log_line(report, 500, 0, problem=wild)
    assert len(line) < 2000
    assert line.isprintable()
    line.encode()


@pytest.mark.parametrize(
    ("text", "shown"), [("a b", "a b"), (" a\n\tb ", "a b"), ("12345", "12345"), ("123456", "1234…"), ("a\x07", "a�")]
)
def test_printable_text(text: str, shown: str) -> None:
    """Whitespace becomes a single space, long text ends with an ellipsis, and invisible characters are replaced."""
    assert printable(text, 5) == shown
