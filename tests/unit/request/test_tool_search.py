"""Tests for finding deferred tools with the patterns and words that models write."""

from __future__ import annotations

import time
from typing import Any

import pytest
from toolsim.core.plan import Tool
from toolsim.request.tool_search import MAX_FOUND, find_tools

PATH = {"type": "object", "properties": {"path": {"type": "string", "description": "Where the file is"}}}
TOOLS = [
    Tool("read_file", "read_file", description="Return a text.", parameters=PATH),
    Tool("getWeather", "getWeather", description="The weather of a city."),
    Tool("send_mail", "send_mail", description="Send a message to the people you name."),
]


def names(**arguments: Any) -> list[str]:
    return [tool.name for tool in find_tools(TOOLS, arguments)]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"pattern": "^read"}, ["read_file"]),
        ({"pattern": "WEATHER"}, ["getWeather"]),
        # The pattern matches a parameter's name, and the query matches the parameter's description.
        ({"pattern": "path"}, ["read_file"]),
        ({"query": "where is the file"}, ["read_file"]),
        ({"query": "weather"}, ["getWeather"]),
        ({"query": "send_mail"}, ["send_mail"]),
        # If a pattern is invalid or matches no tool, toolsim searches for the words in the pattern instead.
        ({"pattern": "mail people"}, ["send_mail"]),
        ({"pattern": "weather("}, ["getWeather"]),
        ({"paths": ["getWeather"]}, ["getWeather"]),
        ({"pattern": "zzz"}, []),
        ({"query": ""}, []),
        ({"query": 3, "pattern": None, "paths": [{}]}, []),
        ({}, []),
    ],
)
def test_tools_are_found(arguments: dict[str, Any], found: list[str]) -> None:
    """Tools can be found by pattern, query or path, and the best match comes first."""
    assert names(**arguments) == found


def test_number_of_results_is_limited() -> None:
    """The number of results is limited. A match in a tool's name ranks above a match in a description."""
    tools = [Tool(f"tool_{number}", f"tool_{number}", description="Heron.") for number in range(100)]
    assert len(find_tools(tools, {"pattern": "heron"})) == MAX_FOUND
    assert find_tools([*tools, Tool("heron", "heron")], {"pattern": "heron"})[0].name == "heron"


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a{1000}){1000}", "(" * 190, "(?:a|a?)+" * 15 + "b", "\\p{L}" * 30])
def test_malicious_patterns_are_fast(pattern: str) -> None:
    """Searching with a pattern that is designed to be slow takes little time."""
    tools = [Tool(f"t{number}", f"t{number}", description="a" * 4_000 + "!") for number in range(200)]
    started = time.monotonic()
    find_tools(tools, {"pattern": pattern})
    assert time.monotonic() - started < 2
