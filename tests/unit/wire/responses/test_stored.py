"""Stored answers, and requests whose references are replaced with the stored content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import Ended, Opened, TextDelta
from toolsim.core.plan import AnswerForm
from toolsim.wire.responses import stored
from toolsim.wire.responses.request import echo
from toolsim.wire.responses.stored import (
    Recalled,
    References,
    appended,
    items_of,
    may_refer_to_stored,
    pieces,
    references,
    resolve,
    with_outcome,
)
from toolsim.wire.responses.writer import ResponsesWriter

LOST = ApiError("The store is down.", code="store_unavailable", status=503)


def item(id: str, text: str = "hi", role: str = "user") -> dict[str, Any]:
    return {"id": id, "type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def record(own: list[Any], output: list[Any]) -> bytes:
    return json.dumps({"response": {"output": output}, "input": own}).encode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, References()),
        ({"input": "previous_response_id"}, References()),
        ({"previous_response_id": "r"}, References("r")),
        ({"previous_response_id": None, "conversation": None}, References()),
        ({"conversation": "c"}, References(conversation="c")),
        ({"conversation": {"id": "c"}}, References(conversation="c")),
        (
            {"input": [{"type": "item_reference", "id": id} for id in "abab"]},
            References(items=("a", "b")),
        ),
        ({"input": [{"type": "item_reference", "id": "a"}, {"id": "a", "role": "user"}]}, References()),
        ({"input": [5, {"type": "item_reference"}, {"type": "item_reference", "id": 5}]}, References()),
    ],
)
def test_references_are_found_once(body: dict[str, Any], expected: References) -> None:
    """Each reference to stored data is returned exactly once. References to items in the same request are not
    returned.
    """
    assert references(body) == expected
    if expected:
        assert stored.may_refer_to_stored(json.dumps(body).encode())


def test_resolved_request_contains_stored_items() -> None:
    """After its references have been resolved, a request contains the stored inputs and outputs, oldest first, followed
    by its own items.
    """
    chain = record([item("i1")], [item("o1")]), record([item("i2")], [item("o2")])
    body = {
        "model": "m",
        "previous_response_id": "r",
        "input": [
            {"type": "item_reference", "id": "x"},
            {"type": "item_reference", "id": "o1"},
            {"role": "user", "content": "new"},
        ],
        "tools": [],
    }
    holder = record([], [item("w"), item("x", "found")])
    resolved = resolve(body, Recalled(references(body), chain, {"x": holder, "o1": chain[0]}))
    assert [item["id"] for item in resolved.body["input"]][:5] == ["i1", "o1", "i2", "o2", "x"]
    new = resolved.body["input"][5]
    assert new["content"] == [{"type": "input_text", "text": "new"}]
    assert resolved.own == [item("x", "found"), new]
    assert resolved.names == (new["id"],)
    assert resolved.echo == {"previous_response_id": "r", "store": True}
    assert {key: resolved.body[key] for key in resolved.body if key != "input"} == {
        "model": "m",
        "tools": [],
        "store": False,
    }


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_empty_id_is_an_error(name: str) -> None:
    """An empty ID is refused with an error, rather than ignored."""
    for wrong in ("", *[{}, {"id": ""}] * (name == "conversation")):
        with pytest.raises(BadRequest) as raised:
            references({name: wrong})
        assert raised.value.error.param == name


@each("wrong", [b"", b"5", b"{}", b'{"response":5,"input":"x"}', b'{"items":{"id":"x"}}', b"\xff{"])
@each("place", [0, 1])
def test_damaged_record_is_not_found(wrong: bytes, place: int) -> None:
    """A damaged record in the store is treated as missing. Otherwise, the request would lose part of its context."""
    good = b'{"response":{"output":[]},"input":[]}'
    records = (wrong, good) if place == 0 else (good, wrong)
    for asked, param in (
        (References("r"), "previous_response_id"),
        (References(conversation="r"), "conversation"),
    ):
        with pytest.raises(BadRequest, match="'r' not found") as caught:
            resolve({"input": "hi"}, Recalled(asked, records))
        assert (caught.value.error.status, caught.value.error.param) == (404, param)
    body = {"input": [{"type": "item_reference", "id": "x"}]}
    with pytest.raises(BadRequest, match="Item with id 'x' not found") as caught:
        resolve(body, Recalled(references(body), (), {"x": wrong}))
    assert caught.value.error.status == 404


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4), st.booleans())
def test_items_are_appended_to_any_conversation(before: list[str], after: list[str], spaced: bool) -> None:
    """Items are appended to a stored conversation without parsing its content."""
    items = [item(f"b{number}", text) for number, text in enumerate(before)]
    own = [item(f"o{number}", text) for number, text in enumerate(after)]
    separators = (", ", ": ") if spaced else (",", ":")
    value = json.dumps({"conversation": {"id": "c"}, "items": items}, separators=separators).encode()
    added = json.loads(appended(value, json.dumps(own).encode(), own[:1]))
    assert added == {"conversation": {"id": "c"}, "items": [*items, *own, *own[:1]]}
    assert items_of(added) == added["items"]


def answer(*, stream: bool) -> tuple[bytes, dict[str, Any]]:
    writer = ResponsesWriter(AnswerForm(stream, "m", echo=echo({"instructions": '"store":true'}), id="resp_1"))
    frames = b"".join(writer.write(Opened()) + writer.write(TextDelta("hi")) + writer.write(Ended({0: "stop"})))
    assert writer.body is not None
    return (frames if stream else json.dumps(writer.body).encode()), writer.body


def events(frames: bytes) -> list[Any]:
    data = [line[6:] for line in frames.decode().split("\n") if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(line) for line in data]


def test_unstored_answer_is_marked() -> None:
    """An answer that could not be stored is marked with ``store: false``. A stored answer is not changed."""
    for stream in False, True:
        data, body = answer(stream=stream)
        assert with_outcome(data, True, stream=stream) == data
        changed = with_outcome(data, False, stream=stream)
        if stream:
            assert events(changed)[:-1] == events(data)[:-1]
            assert events(changed)[-1] == events(data)[-1] | {"response": body | {"store": False}}
        else:
            assert json.loads(changed) == body | {"store": False}


def test_lost_answer_fails() -> None:
    """If an answer cannot be stored, its stream ends like the stream of a failed answer, with an error event and the
    failed response.
    """
    data, body = answer(stream=True)
    *before, error, last = events(with_outcome(data, LOST))
    assert before == events(data)[:-1]
    assert (error["type"], error["code"], error["error"]["code"]) == ("error", "store_unavailable", "store_unavailable")
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["output"] == body["output"]
    assert [event["sequence_number"] for event in (*before, error, last)] == list(range(len(before) + 2))


def test_items_receive_ids() -> None:
    """An item without an ID receives an ID with the prefix for its type. The IDs of a failed answer's items are not
    recorded.
    """
    made = [stored.stored_item({"type": kind}) for kind in ("message", "function_call", "reasoning", "other")]
    assert [item["id"].partition("_")[0] for item in made] == ["msg", "fc", "rs", "item"]
    assert len({item["id"] for item in made}) == 4
    _, body = answer(stream=False)
    assert stored.output_names(body) == (body["output"][0]["id"],)
    assert stored.output_names({**body, "status": "failed"}) is None
    assert stored.output_names(None) is None


@pytest.mark.parametrize("status", ["queued", "in_progress", "failed", "cancelled"])
def test_unfinished_answer_cannot_be_continued(status: str) -> None:
    """An unfinished or failed answer cannot be continued, but an incomplete answer can."""
    value = json.dumps({"response": {"id": "r", "status": status, "output": []}, "input": []}).encode()
    with pytest.raises(BadRequest, match=f"its status is '{status}'") as caught:
        resolve({"input": "x"}, Recalled(References("r"), (value,)))
    assert caught.value.error.param == "previous_response_id"
    whole = value.replace(status.encode(), b"incomplete")
    assert resolve({"input": "x"}, Recalled(References("r"), (whole,))).body["store"] is False


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ([{"role": "user", "content": "x"}, {"role": 5, "content": "x"}], "input[1].role"),
        ([{"type": "item_reference", "id": "o1"}, {"type": "function_call"}], "input[1].name"),
        (5, "input"),
    ],
)
def test_error_names_the_path_in_the_request(asked: Any, param: str) -> None:
    """The error for a malformed item gives the item's path in the client's request. Stored items that were inserted do
    not change this path.
    """
    chain = record([item("i1")], [item("o1")]), record([item("i2")], [item("o2")])
    body = {"previous_response_id": "r", "input": asked}
    with pytest.raises(BadRequest) as caught:
        resolve(body, Recalled(references(body), chain))
    assert caught.value.error.param == param


@pytest.mark.parametrize("end", [b"}", b',"background":{"stream":false}}'], ids=["foreground", "background"])
def test_answer_is_not_a_conversation(end: bytes) -> None:
    """An answer cannot be continued as a conversation, and a conversation cannot be continued as an answer."""
    value = record([item("i")], [])[:-1] + end
    with pytest.raises(BadRequest, match="Conversation with id 'r' not found") as caught:
        resolve({"input": "x"}, Recalled(References(conversation="r"), (value,)))
    assert (caught.value.error.status, caught.value.error.param) == (404, "conversation")
    talk = json.dumps({"conversation": {"id": "c"}, "items": [item("i")]}).encode()
    with pytest.raises(BadRequest, match="Previous response with id 'c' not found") as caught:
        resolve({"input": "x"}, Recalled(References("c"), (talk,)))
    assert caught.value.error.code == "previous_response_not_found"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"background":true}', True),
        (b'{"background" \n: \t true}', True),
        (b'{"previous_response_id":null}', True),
        (b'{"conversation":"c"}', True),
        (b'{"input":[{"type":"item_reference","id":"i"}]}', True),
        (b'{"background":false,"tools":[{"parameters":{"properties":{"background":{"type":"boolean"}}}}]}', False),
        (b'{"input":"\\"background\\":true","metadata":{"is_background":"true"}}', False),
    ],
)
def test_possible_references_are_detected(body: bytes, expected: bool) -> None:
    """A body is parsed in advance only if it might contain a reference or request a background answer."""
    assert may_refer_to_stored(body) is expected


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "item_reference", "background"])
def test_reference_split_between_pieces_is_found(name: str) -> None:
    """A reference field is found even if its name is split between two chunks of the body."""
    for before in range(100):
        body = b" " * before + b'"%s":true' % name.encode() + b" " * 50
        assert any(pieces(body, 40))
    assert not any(pieces(b"x" * 1_000, 40))
