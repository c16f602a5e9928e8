"""Tests for the page that shows a turn's prompt verbatim."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support import wire
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.pages.read_prompt import find_catalog
from toolsim.pages.show_prompt import show_prompt, show_words
from toolsim.request.rewrite import rewrite_request

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The sky.\n\nOver a city."}}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
BODY: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": [{"type": "text", "text": "  one\n\n\ttwo"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain."},
    ],
    "tools": [TOOL],
}


def test_complete_catalog_is_shown() -> None:
    """The prompt page contains every line that the model reads, including the entire catalog."""
    rewritten = rewrite_request("chat", "/v1/x", json.dumps(BODY).encode(), Policy(), output_mode=None, report=Report())
    assert rewritten is not None
    shown = show_prompt(rewritten.body)
    words = " ".join(shown.replace("\n↪ ", " ").split())
    for message in json.loads(rewritten.body)["messages"]:
        assert " ".join(message["content"].split()) in words
    found = find_catalog(re.sub("\n↪ +", " ", shown))
    assert found is not None
    assert [tool.name for tool in found.tools] == ["get_weather"]


def test_unmodified_request_is_shown() -> None:
    """On the prompt page, a request that was not rewritten is shown with its calls and outputs. A body that is not a
    request is shown unchanged.
    """
    shown = show_prompt(json.dumps(BODY).encode())
    assert shown.startswith("▌system\nBe terse.\n \n▌user\n  one\n \n\ttwo\n \n▌call\n→ get_weather   c1\n")
    assert shown.endswith("▌output\n← c1\nRain.\n")
    assert show_prompt(b"{torn") == "{torn\n"


def test_text_of_the_model_is_shown() -> None:
    """The prompt page shows the model's text, whether streamed or not. A body without text is shown unchanged."""
    assert show_words(wire.chat_whole("one\n\ntwo")) == "one\n \ntwo\n"
    assert show_words(wire.chat_stream("one ", "two")) == "one two\n"
    assert show_words(b'{"error": 1}') == '{"error": 1}\n'


@given(st.binary())
def test_any_body_results_in_a_page(data: bytes) -> None:
    show_prompt(data)
    show_words(data)
