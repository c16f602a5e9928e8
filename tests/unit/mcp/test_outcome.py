"""Tests for how the results of MCP calls are shown to the client and the model."""

from __future__ import annotations

from typing import Any

import pytest
from toolsim.mcp.outcome import FAILED, TOO_LARGE, failed, outcome_of


def of(*parts: dict[str, Any], structured: Any = None, is_error: bool = False, limit: int = 1000) -> Any:
    return outcome_of(parts, structured, is_error=is_error, limit=limit)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "text", "text": "hi"}, "hi"),
        ({"type": "image", "data": "AAAA", "mimeType": "image/png"}, "[image image/png, 3 bytes]"),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}, "inside"),
        ({"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}}, "[resource , 3 bytes]"),
        ({"type": "resource_link", "uri": "file:///a", "name": "a"}, "[resource file:///a]"),
    ],
)
def test_parts_of_a_result_become_text(part: dict[str, Any], text: str) -> None:
    """The text parts of a result become the output. Other parts are replaced by a textual description."""
    assert of(part).output == text
    assert of(part, {"type": "text", "text": "more"}).shown == f"{text}\nmore"


def test_structured_content_is_used_only_without_text() -> None:
    """Structured content is used only if a result contains no text, because it usually repeats the text."""
    assert of(structured={"a": 1}).output == '{"a":1}'
    assert of({"type": "text", "text": "x"}, structured={"a": 1}).output == "x"


def test_errors_have_api_formats() -> None:
    """If a call fails or its result is too large, the client receives an error in the format of the Responses API, and
    the model reads the error as text.
    """
    own = of({"type": "text", "text": "No such file."}, is_error=True)
    assert (own.output, own.code, own.shown) == (None, FAILED, "Error: No such file.")
    assert own.error is not None
    assert own.error["type"] == "mcp_tool_execution_error"
    large = of({"type": "text", "text": "é" * 501})
    assert (large.output, large.code) == (None, TOO_LARGE)
    assert "1002 bytes, expected at most 1000" in large.shown
    gone = failed("It has gone.", number=-3)
    assert gone.error == {"type": "mcp_protocol_error", "code": -3, "message": "It has gone."}
    assert len(failed("x" * 10_000).shown) < 3_000
