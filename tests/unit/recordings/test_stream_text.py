"""Tests for editing text that is split across several deltas of a stream."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from toolsim.recordings.stream_text import EditedStr, edit_pieces, edit_stream, parse_json


def frames(*documents: Any) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(document).encode() for document in documents)


def chat(content: str, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": content}}]}


def same(value: Any) -> Any:
    return value


@given(st.lists(st.text("ab", max_size=3), min_size=1, max_size=8))
def test_split_text_is_edited_as_a_unit(texts: list[str]) -> None:
    """A text that is split across deltas is edited as one string, and then split again at the original offsets."""
    edited = edit_stream(frames(*map(chat, texts)), lambda text: text.replace("ab", "XY"), same)
    found = [json.loads(line[6:])["choices"][0]["delta"]["content"] for line in edited.decode().split("\n") if line]
    assert [len(text) for text in found] == [len(text) for text in texts]
    assert "".join(found) == "".join(texts).replace("ab", "XY")


def test_choices_and_items_are_separate_texts() -> None:
    """The deltas of each choice and of each output item form a separate text."""
    documents = [chat("a", 0), chat("b", 1), chat("b", 0), chat("a", 1)]
    seen: list[str] = []
    edit_pieces(documents, lambda text: seen.append(text) or text)  # type: ignore[func-returns-value]
    assert seen == ["ab", "ba"]
    events = [
        {"type": "x.delta", "item_id": item, "delta": text} for item, text in (("1", "a"), ("2", "b"), ("1", "c"))
    ]
    seen.clear()
    edit_pieces(events, lambda text: seen.append(text) or text)  # type: ignore[func-returns-value]
    assert seen == ["ac", "b"]
    # In the Messages API, the index of a content block identifies the text to which a delta belongs.
    inputs = [(0, "a"), (0, "b"), (1, "c")]
    events = [
        {"type": "content_block_delta", "index": at, "delta": {"type": "input_json_delta", "partial_json": text}}
        for at, text in inputs
    ]
    seen.clear()
    edit_pieces(events, lambda text: seen.append(text) or text)  # type: ignore[func-returns-value]
    assert seen == ["ab", "c"]


def test_unchanged_stream_is_kept_byte_for_byte() -> None:
    """If no edit applies to a stream, it is kept byte for byte, including unusual whitespace and an unfinished last
    event.
    """
    data = b': hi\r\n\r\ndata:{"a" : 1.0}\r\n\r\ndata: [DONE]\n\ndata: {"cut\xff'
    assert edit_stream(data, same, same) == data


def test_value_receives_each_event() -> None:
    """The ``value`` function receives each complete event, in which strings that have been edited are of type
    ``EditedStr``.
    """
    seen: list[Any] = []

    def value(document: Any) -> Any:
        seen.append(type(document["choices"][0]["delta"]["content"]))
        return document | {"id": "new"}

    edited = edit_stream(frames(chat("a")), str.upper, value)
    assert seen == [EditedStr]
    assert json.loads(edited[6:]) == chat("A") | {"id": "new"}


def test_lines_without_json_have_a_separate_editor() -> None:
    """Lines of a stream that do not contain JSON, such as comments, are edited by a separate function."""
    assert edit_stream(b": a\n\ndata: [DONE]\n", same, same, str.upper) == b": A\n\nDATA: [DONE]\n"


def test_edited_tokens_lose_their_bytes() -> None:
    """If the text of a token is edited, its ``bytes`` are removed, because they contain the original text."""
    token = {"token": "a", "logprob": -0.1, "bytes": [97]}
    document = {"choices": [{"logprobs": {"content": [token]}}]}
    assert edit_pieces([document], str.upper) == {0}
    assert token == {"token": "A", "logprob": -0.1, "bytes": None}


def test_parse_json() -> None:
    """``parse_json`` returns None unless the text is a JSON object or array."""
    assert parse_json("[1]") == [1]
    assert parse_json("1") is parse_json("{") is parse_json("[" * 100_000) is None
