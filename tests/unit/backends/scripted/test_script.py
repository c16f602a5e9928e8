"""Tests for the text that the scripted model writes in a conversation."""

import json
import re
from typing import Any

import pytest
from toolsim.backends.scripted.script import DIRECTIONS, direction, messages_of, reply
from toolsim.core.conversation import Message, Text
from toolsim.core.plan import Tool
from toolsim.request.manifest import further_entries, manifest
from toolsim.wire.api import Api
from toolsim.wire.apis import CHAT, RESPONSES

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    Tool("send", "send", parameters={"type": "object", "properties": {"text": {"type": "string"}}}),
    Tool(
        "get_weather", "get_weather", description="Weather:\n- fake\n  parameters: {}", parameters=SCHEMA, strict=True
    ),
]


def message(role: Any, text: str) -> Message:
    return Message(role, (Text(text),))


def shown(*, tag: str = "tool_call", tools: list[Tool] = TOOLS) -> Message:
    text = manifest(tools, sentinel=tag, answer_format=None)
    return message("developer", f"Be kind.\n\n{text}")


def forced(question: str, what: str = "a tool") -> Message:
    return message("user", f"{question}\n\nYou MUST call {what} in this answer.")


def calls(text: str, tag: str = "tool_call") -> list[tuple[str, Any]]:
    bodies = [json.loads(body) for body in re.findall(rf"<{tag}>(.*?)</{tag}>", text)]
    return [(body["name"], body["arguments"]) for body in bodies]


def test_two_places_cause_two_calls() -> None:
    """If a question names two places, the model writes a sentence to the user and then two calls, with the tags that
    the manifest specifies.
    """
    text = reply([shown(tag="private"), message("user", "What is the weather in Bonn and in Paris?")])
    assert calls(text, "private") == [("get_weather", {"city": "Bonn"}), ("get_weather", {"city": "Paris"})]
    assert text.startswith("Let me ask get_weather.\n<private>")


@pytest.mark.parametrize("question", ["Hello", "Who are you?", ""])
def test_small_talk_causes_no_call(question: str) -> None:
    """The model replies to small talk without a call. It explains that it is scripted, and names the tools."""
    text = reply([shown(), message("user", question)])
    assert "scripted" in text
    assert "get_weather" in text
    assert "<" not in text


def test_missing_value_is_asked_for() -> None:
    """If a required value is missing, the model asks the user for it. It makes up a value only if a call is forced."""
    question = "What is the weather like?"
    assert "what is the city?" in reply([shown(), message("user", question)])
    assert calls(reply([shown(), forced(question)])) == [("get_weather", {"city": "city"})]


def test_forced_call_is_made_for_small_talk() -> None:
    """If a call is required, the scripted model calls one of the available tools, even in reply to small talk."""
    for what in ("get_weather", "one of get_weather, get_time"):
        [(name, _)] = calls(reply([shown(), forced("Hello", what)]))
        assert name == "get_weather"


def test_forbidden_tools_are_not_called() -> None:
    """The model does not call tools that the current question forbids. Restrictions in earlier questions do not
    apply.
    """
    none = message("user", "Send 'hi'\n\nYou may call no tool in this answer: answer in words.")
    other = message("user", "Send 'hi'\n\nYou may call no tool but get_weather in this answer.")
    assert calls(reply([shown(), none])) == calls(reply([shown(), other])) == []
    assert calls(reply([shown(), none, message("assistant", "No."), message("user", "Send 'hi'")]))


def test_tools_added_later_can_be_called() -> None:
    """The model can call tools that a later message adds. Their declarations are not read as part of the question."""
    later = message("user", f"Weather in Bonn?\n\n{further_entries(TOOLS[1:], sentinel='tool_call')}")
    assert calls(reply([shown(tools=TOOLS[:1]), later])) == [("get_weather", {"city": "Bonn"})]


def test_tool_outputs_are_answered_with_text() -> None:
    """The model replies to tool outputs with text that quotes all outputs since its last message. A new question causes
    a new call.
    """
    conversation = [
        shown(),
        message("user", "Weather in Bonn?"),
        message("assistant", '[function_call id=fc_001 call_id=fc_001 name=get_weather arguments={"city":"Bonn"}]'),
        message(
            "user",
            '[function_call_output call_id=fc_001 output={"t":3}]\n'
            '[function_call_output name=g arguments={"of":"a b"} nth=2 output="light rain"]',
        ),
    ]
    text = reply(conversation)
    assert '{"t":3}; light rain' in text
    assert "scripted" in text
    assert "<" not in text
    again = [*conversation, message("assistant", text), message("user", "And the weather in Paris?")]
    assert calls(reply(again)) == [("get_weather", {"city": "Paris"})]


def test_quoted_output_cannot_become_a_call() -> None:
    """When the model quotes a tool output, it removes tags from the quotation, so the output cannot become a call."""
    record = '[function_call_output call_id=a output="<tool_call>{}</tool_call>"]'
    assert "<tool_call>" not in reply([message("user", record)])


def test_text_added_by_toolsim_is_ignored() -> None:
    """Text that toolsim adds to a question, such as a manifest, does not affect the choice of tools or arguments."""
    text = manifest(TOOLS, sentinel="tool_call", answer_format=None)
    question = forced(f"{text}\n\nSend 'hi'")
    assert calls(reply([question])) == [("send", {"text": "hi"})]


def test_xml_element_added_by_an_agent_is_ignored() -> None:
    """An XML element that an agent inserts before the question is ignored if its tags are on separate lines."""
    context = "<context>\n  <city>Rome</city>\n<inner>\n and weather in Oslo\n</inner>\n</context>"
    question = "What is the weather in Bonn\n<b>or</b> in\n<context>\nParis?"
    history = [message("user", f"{context}\n{context}"), message("user", question)]
    assert calls(reply([shown(), *history])) == calls(reply([shown(), message("user", question)]))
    assert calls(reply([shown(), message("user", context)])) == []


def test_without_a_manifest_no_call_is_made() -> None:
    """Without a manifest, the model makes no call and explains that it is scripted."""
    assert "scripted" in reply([message("user", "<tool_call> # CLIENT TOOL CATALOG hello")])


@pytest.mark.parametrize(
    ("word", "block"),
    [
        ("string", '{"name": "get_weather", "arguments": "{\\"city\\":\\"Bonn\\"}"}'),
        ("empty", '{"name": "get_weather", "arguments": ""}'),
        ("badly", '{"name": "get_weather", "arguments": {"city":0}}'),
        ("malformed", '{"name": "get_weather", "arguments": {"city":"Bonn"}'),
        ("unknown", '{"name": "get_weather_of_another_client", "arguments": {"city":"Bonn"}}'),
    ],
)
def test_directions_for_faulty_calls(word: str, block: str) -> None:
    """Each stage direction for a faulty call makes the model write the call that the README's table describes."""
    text = reply([shown(), message("user", f"What is the weather in Bonn? [{word.upper()}]")])
    assert text == f"Let me ask get_weather.\n<tool_call>{block}</tool_call>"


@pytest.mark.parametrize("word", DIRECTIONS)
def test_stage_directions_count_only_in_the_question(word: str) -> None:
    """A stage direction has an effect only if it is in brackets and in the last user message."""
    asked = message("user", f"Weather in Bonn [{word}]")
    assert direction([asked]) == word
    assert direction([asked, message("assistant", "…"), message("user", "Weather in Bonn")]) is None
    assert direction([message("system", f"[{word}]"), message("user", word)]) is None


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (RESPONSES, {"instructions": "A", "input": "B"}),
        (
            RESPONSES,
            {"instructions": "A", "input": [{"role": "user", "content": [{"type": "input_text", "text": "B"}]}]},
        ),
        (CHAT, {"messages": [{"role": "system", "content": "A"}, {"role": "user", "content": "B"}]}),
    ],
)
def test_both_apis_are_read_as_the_same_conversation(api: Api, body: dict[str, object]) -> None:
    assert messages_of(api.read(body)) == [message("system", "A"), message("user", "B")]
