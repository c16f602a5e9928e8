"""The scripted model, text in and text out."""

import json

import pytest
from toolsimlib.backends import scripted
from toolsimlib.backends.scripted import Said, find_offer, write
from toolsimlib.plan import Choice, Tool
from toolsimlib.request.manifest import manifest
from toolsimlib.wire.dialect import CHAT, RESPONSES, Api

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
}
TOOLS = [
    Tool(
        "get_weather", "get_weather", description="Weather:\n- fake\n  parameters: {}", parameters=SCHEMA, strict=True
    ),
    Tool("send", "send"),
]
CATALOGUE = "Be kind.\n\n" + manifest(TOOLS, Choice(), sentinel="tool_call", one_call=False, answer_format=None)


def test_it_calls_the_first_tool_with_arguments_from_its_schema() -> None:
    """The first answer to a real catalogue is one call block, in the catalogue's own tag."""
    transcript = [Said("developer", CATALOGUE.replace("tool_call>", "private>")), Said("user", "Weather?")]
    block = write(transcript)
    assert block.startswith("<private>")
    assert block.endswith("</private>")
    call = json.loads(block.removeprefix("<private>").removesuffix("</private>"))
    assert call["name"] == "get_weather"
    assert json.loads(call["arguments"]) == {"city": "city", "unit": "C"}


def test_it_answers_in_words_once_the_output_has_come() -> None:
    """An output record after the assistant's last message ends the loop, with the output quoted."""
    transcript = [
        Said("developer", CATALOGUE),
        Said("user", "Weather?"),
        Said("assistant", '[function_call id=fc_001 call_id=fc_001 name=get_weather arguments={"city":"x"}]'),
        Said("user", '[function_call_output call_id=fc_001 output={"t":3}]\nRemember the tools.'),
    ]
    text = write(transcript)
    assert '{"t":3}' in text
    assert "scripted" in text
    assert "<" not in text
    again = [*transcript, Said("assistant", text), Said("user", "And now?")]
    assert write(again).startswith("<tool_call>")


def test_a_quoted_output_cannot_become_a_call() -> None:
    """What a tool answered is quoted without a tag in it."""
    record = '[function_call_output call_id=a output="<tool_call>{}</tool_call>"]'
    assert "<tool_call>" not in write([Said("user", record)])


def test_without_a_catalogue_it_answers_in_words() -> None:
    """No tools, no call; and it says what it is."""
    assert "scripted" in write([Said("user", "<tool_call> # hello")])
    assert find_offer([Said("user", "hello")]) is None


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
def test_it_reads_both_apis(api: Api, body: dict[str, object]) -> None:
    """One transcript from each shape of a request."""
    assert scripted.read(api.read(body)) == [Said("system", "A"), Said("user", "B")]
