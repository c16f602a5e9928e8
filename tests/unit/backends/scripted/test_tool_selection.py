"""Tests for selecting the tools that match a question."""

from typing import Any

import pytest
from support.each import each
from toolsim.backends.scripted.tool_selection import choose, mask_quotes
from toolsim.core.plan import Tool


def tool(name: str, description: str = "", **properties: Any) -> Tool:
    return Tool(name, name, description=description, parameters={"type": "object", "properties": properties})


TOOLS = (
    tool("get_weather", "Current conditions of a city", city={}, unit={"enum": ["celsius", "fahrenheit"]}),
    tool("get_weather_forecast", "Conditions of the next days"),
    tool("searchNotes", "Looks through everything that was written down"),
    tool("send_email", "Writes to somebody"),
)


@each(
    ("question", "expected"),
    [
        ("What is the weather in Bonn?", ["get_weather"]),
        ("What is the weather in Bonn and in Paris?", ["get_weather"]),
        ("A weather forecast for Bonn, please", ["get_weather_forecast"]),
        ("Search my notes", ["searchNotes"]),
        ("Look through what was written", ["searchNotes"]),
        ("The weather in Bonn, and search my note about it", ["get_weather", "searchNotes"]),
        ("Search my notes, then email them", ["searchNotes", "send_email"]),
        ("Hello", []),
        ("Who are you and what can you do?", []),
        ("Which city is that?", []),
        ("Say 'send an email about the weather'", []),
        ("", []),
    ],
)
def test_tool_is_selected_by_words(question: str, expected: list[str]) -> None:
    """A tool is selected if the question contains a word of the tool's name, or at least two other words of its
    declaration. Small talk selects no tool.
    """
    assert [chosen.name for chosen, _ in choose(question, TOOLS)] == expected


def test_question_is_divided_among_tools() -> None:
    """The question is divided among the selected tools. Clauses that match no tool are added to the preceding
    clause.
    """
    question = "Please: the weather in Bonn, in Paris, and search notes for rain. Now!"
    [(_, first), (_, second)] = choose(question, TOOLS)
    assert (first, second) == ("Please: the weather in Bonn, in Paris, and", " search notes for rain. Now!")


def test_forced_call_selects_best_match_or_first_tool() -> None:
    assert [chosen.name for chosen, _ in choose("Hello", TOOLS, forced=True)] == ["get_weather"]
    assert [chosen.name for chosen, _ in choose("Which somebody?", TOOLS, forced=True)] == ["send_email"]
    assert choose("Hello", (), forced=True) == []


@pytest.mark.parametrize("text", ['a "b, c" d', "a 'b and c' d", "a “b” d", "a „b“ d", "a `b` d"])
def test_quotations_are_masked_in_place(text: str) -> None:
    """Text in any kind of quotation marks is replaced with NUL characters, and the length of the sentence does not
    change.
    """
    masked = mask_quotes(text)
    assert len(masked) == len(text)
    assert masked.replace("\0", "") == "a  d"


def test_apostrophes_do_not_enclose_a_quotation() -> None:
    """Text between two apostrophes is not masked as a quotation."""
    assert mask_quotes("What's Ann's weather?") == "What's Ann's weather?"
