"""Tests for pseudonyms, which are random words of the same length and capitalization. All other text is unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.exceptions import CommandError
from support.each import each
from support.recording import CALL, context, recording
from toolsim.recordings.commands import Commands
from toolsim.recordings.pseudonymise import Pseudonyms, pseudonymise
from toolsim.recordings.replay import recorded, replay_file

WORDS = Pseudonyms(["get_weather", "ls"], b"key")


def shape(text: str) -> str:
    return re.sub(r"[1-9]", "1", re.sub(r"[^\W\d_]", "a", text))


def test_words_are_replaced_consistently() -> None:
    """A word is always replaced with the same pseudonym, which is capitalized like the word. Punctuation, zeros and
    lengths do not change.
    """
    text = WORDS.text("Paris, paris and PARIS: 20.50 Euro")
    assert shape(text) == shape("Paris, paris and PARIS: 20.50 Euro")
    first, second, _, third = text.replace(",", "").replace(":", "").split()[:4]
    assert first.lower() == second == third.lower()
    assert first[0].isupper()
    assert third.isupper()
    assert "aris" not in text


@each(
    "kept",
    [
        "<tool_call>",
        "</tool_call>",
        "<use_tool>",
        '{"name":"get_weather","arguments":',
        r"{\"city\":",
        "get_weather",
        "ls",
        "true",
        "null",
        r"\n",
        r"\u00e4",
        "call_001",
        "fc_012",
    ],
)
def test_structure_is_kept(kept: str) -> None:
    """Tags, keys, tool names, JSON literals, escapes and IDs are not replaced with pseudonyms."""
    assert kept in WORDS.text(f"Something {kept} else")


def test_another_key_yields_other_words() -> None:
    """A different key results in different pseudonyms. By default, the key is random, so that the original words cannot
    be recovered.
    """
    text = "It is clear in Paris."
    assert WORDS.text(text) != Pseudonyms([], b"other").text(text)
    assert Pseudonyms([]).text(text) != Pseudonyms([]).text(text)


@given(st.text())
def test_lengths_are_kept(text: str) -> None:
    """Pseudonymizing a string does not change its length, so a stream can be split at the original offsets."""
    assert len(WORDS.text(text)) == len(text)


@given(st.lists(st.integers(1, 30), max_size=10))
def test_word_in_pieces_is_replaced(cuts: list[int]) -> None:
    """A word that is split across several deltas is replaced as one word."""
    text, rest, texts = f"Let me look at Paris. {CALL}", f"Let me look at Paris. {CALL}", []
    for cut in cuts:
        texts.append(rest[:cut])
        rest = rest[cut:]
    texts.append(rest)
    events = [{"id": "c", "choices": [{"index": 0, "delta": {"content": piece}}]} for piece in texts]
    data = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    lines = [line[6:] for line in WORDS.stream(data).decode().split("\n") if line.startswith("data: ")]
    pieces = [json.loads(line)["choices"][0]["delta"]["content"] for line in lines[:-1]]
    assert [len(piece) for piece in pieces] == [len(piece) for piece in texts]
    assert "".join(pieces) == WORDS.text(text)
    assert lines[-1] == "[DONE]"


def test_only_data_values_are_replaced() -> None:
    """Values that the API defines, such as ``role``, are kept. Values in a tool's schema are replaced in the same way
    as the arguments of calls.
    """
    body = {
        "model": "gpt-text",
        "messages": [
            {"role": "user", "content": "Hello there"},
            {"role": "tool", "tool_call_id": "call_1", "content": "x1"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "Tell it",
                    "parameters": {
                        "type": "object",
                        "properties": {"unit": {"enum": ["metric"]}},
                        "required": ["unit"],
                    },
                },
            }
        ],
        "temperature": 1.5,
    }
    other = WORDS.value(body)
    assert shape(json.dumps(other)) == shape(json.dumps(body))
    assert other["model"] == "gpt-text"
    assert [message["role"] for message in other["messages"]] == ["user", "tool"]
    assert other["messages"][0]["content"] == WORDS.text("Hello there") != "Hello there"
    function = other["tools"][0]["function"]
    assert function["name"] == "get_weather"
    assert function["parameters"]["required"] == ["unit"]
    assert function["parameters"]["properties"]["unit"]["enum"] == [WORDS.text("metric")]
    assert WORDS.text('{"unit": "metric"}') == f'{{"unit": "{WORDS.text("metric")}"}}'


@pytest.mark.parametrize("name", ["code", "format", "id", "mode", "name", "pattern", "required", "status", "type"])
def test_property_named_like_an_api_field_is_replaced(name: str) -> None:
    """The schema of a property is pseudonymized as usual, even if the property has the same name as an API field."""
    schema = {"type": "string", "format": "date", "description": "Of Paris", "enum": ["metric"]}
    other = WORDS.value({"parameters": {"properties": {name: schema}}})["parameters"]["properties"][name]
    assert other == {**schema, "description": WORDS.text("Of Paris"), "enum": [WORDS.text("metric")]}


def test_replay_of_pseudonymised_files_succeeds(tmp_path: Path) -> None:
    """Only the backend's side of a recording is pseudonymized. The client's side is then created from it, so a replay
    has no differences.
    """
    command = Commands()
    with context():
        for stream in (True, False):
            path = recording(tmp_path, stream=stream)
            report = recorded(path)[1].metadata["toolsim"]
            pseudonymise(path, b"key")
            assert b"Paris" not in path.read_bytes()
            assert replay_file(path).same
            assert recorded(path)[1].metadata["toolsim"] == report
        before = path.read_bytes()
        command.pseudonymise(str(tmp_path))
        assert path.read_bytes() != before
        (tmp_path / "other.flow").write_bytes(b"nonsense")
        with pytest.raises(CommandError, match="other"):
            command.pseudonymise(str(tmp_path))


def test_log_probabilities_lose_their_bytes() -> None:
    """In log probabilities, the ``bytes`` of each token are removed, because they would reveal the original text."""
    words = Pseudonyms((), key=b"k")
    event = {"choices": [{"logprobs": {"content": [{"token": "Paris", "logprob": -0.1, "bytes": [80, 97]}]}}]}
    streamed = json.loads(words.stream(b"data: %s\n\n" % json.dumps(event).encode()).removeprefix(b"data: "))
    assert streamed == words.value(event)
    (token,) = streamed["choices"][0]["logprobs"]["content"]
    assert token == {"token": words.text("Paris"), "logprob": -0.1, "bytes": None}
