"""A history with a cached beginning is read like any other, by the parser and by the readers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toolsimlib.errors import BadRequest
from toolsimlib.wire import beginnings, request_body
from toolsimlib.wire.dialect import CHAT, RESPONSES, Api
from toolsimlib.wire.json_codec import parse_object
from toolsimlib.wire.kept_arrays import KeptArrays
from toolsimlib.wire.request_body import beginning_of, read_body

KEYS = {CHAT: "messages", RESPONSES: "input"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache short histories as well, and start with none."""
    histories = KeptArrays(8, 2, 9_999)
    for room in (beginnings, request_body):
        monkeypatch.setattr(room, "histories", histories)


def parsed(data: bytes) -> dict[str, Any] | None:
    return parse_object(data, parse_float=request_body._finite, parse_constant=request_body._finite)


def read_before(*items: Any, key: str = "messages") -> list[Any]:
    """Return the cached items, after reading them."""
    body = read_body(json.dumps({key: items}).encode())
    assert body is not None
    read: list[Any] = body[key]
    assert beginning_of(read) is not None
    return read


@pytest.mark.parametrize("key", ["messages", "input"])
@pytest.mark.parametrize("body", ['{"%s": [{"a": 1}, %s], "x": 1}', '{"x": [], "%s":\n[{"a": 1}, %s]}'])
def test_the_beginning_of_a_history_is_not_parsed_again(key: str, body: str) -> None:
    """Cached items are the very same objects; a history that continues them replaces them in the cache."""
    for more in ("2", '2, {"b": [3]}', '2, {"b": [3]}', '2, {"b": [3]}, "]"'):
        before = read_before({"a": 1}, 2, key=key)
        data = (body % (key, more)).encode()
        read = read_body(data)
        assert read == json.loads(data)
        assert read is not None
        assert list(read) == list(json.loads(data))
        assert read[key][0] is before[0]
        assert (beginning_of(before) is None) == (read[key] is not before)


def test_a_history_is_continued_again_and_again() -> None:
    """Each time all items that were read before are the very same objects."""
    before: list[Any] = []
    for count in range(1, 6):
        items = [{"number": number} for number in range(count)]
        read = read_before(*items)
        assert read == items
        assert all(one is other for one, other in zip(before, read, strict=False))
        before = read


def test_what_was_made_of_a_beginning_is_inherited() -> None:
    """By the history that continues it, and by no other one."""
    before = beginning_of(read_before({"a": 1}))
    assert before is not None
    before.read = "what a reader made"
    longer, other = beginning_of(read_before({"a": 1}, 2)), beginning_of(read_before({"a": 2}, 2))
    assert longer is not None
    assert longer.read == before.read
    assert other is not None
    assert other.read is None


@pytest.mark.parametrize(
    "body",
    [
        '{"messages": [{"a": 1},]}',
        '{"messages": [{"a": 1},,2]}',
        '{"messages": [{"a": 1} 2]}',
        '{"messages": [{"a": 1}',
        '{"messages": [{"a": 1}}',
        '{"messages": [{"a": 1}] 2}',
        '{"messages": [{"a": 1}, NaN]}',
        '{"messages": [{"a": 1}, 1e999]}',
        '{"messages": [{"a": 1}, 2], "messages": 3}',
        '{"messages": 3, "messages": [{"a": 1}, 2]}',
        '{"messages": [{"a": 1}, 2], "input": [{"a": 1}, 3]}',
        '{"x": {"messages": [{"a": 1}, 2]}, "messages": [4]}',
        '{"tools": [{"messages": [{"a": 1}, 2]}], "messages": [4]}',
        '{"messages": [{"a": 1}, 2], "x": {"tools": []}}',
        '{"messages": [{"a": 1}, 2], "x": {"tools": []}, "tools": [1]}',
        '{"a\\"messages": [{"a": 1}, 2]}',
        '{"x": "\\"messages\\": [{\\"a\\": 1}, 2]"}',
        '[{"messages": [{"a": 1}, 2]}]',
        '{"messages": [{"a": 1}, "\\ud83d"]}',
        '{"messages": []}',
        '{"messages": [  ]}',
    ],
)
def test_anything_else_is_for_the_parser(body: str) -> None:
    """If a source is not the beginning of the body's own history, or a body is not JSON, the cache is not used."""
    read_before({"a": 1})
    read_before({"a": 1}, key="input")
    for _ in range(2):
        assert read_body(body.encode()) == parsed(body.encode())


VALUES = st.recursive(
    st.none()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "]", 'a,"', "é"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["messages", "input", "x"]), inner),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VALUES, max_size=5), st.lists(st.integers(0, 5), max_size=4), st.data())
def test_a_conversation_is_read_as_parsed(items: list[Any], lengths: list[int], data: st.DataObject) -> None:
    """However a history grows, shrinks or is damaged between requests, each body equals the parser's result."""
    for length in lengths:
        key = data.draw(st.sampled_from(["messages", "input"]))
        text = json.dumps({"m": 1, key: items[:length], "tools": []}, ensure_ascii=False)
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(text)))
            text = text[:at] + data.draw(st.sampled_from([",", "]", "[", " ", '"', "1"])) + text[at:]
        assert read_body(text.encode()) == parsed(text.encode())


def test_a_bounded_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last 32 histories are cached, and of larger ones as many as are not too large together."""
    monkeypatch.undo()
    read = [read_before("x" * 4_092, number) for number in range(100, 135)]
    assert [beginning_of(history) is not None for history in read] == [False] * 3 + [True] * 32
    for size, is_kept in ((4_095, False), (4_096, True), (2_097_152, True), (2_097_153, False)):
        items = ["x" * (size - len('[""'))]
        body = read_body(json.dumps({"messages": items}).encode())
        assert body == {"messages": items}
        assert (beginning_of(body["messages"]) is not None) == is_kept


def fresh(api: Api, body: bytes) -> Any:
    """Return a reader's result for a body that is not in the cache, or the param of its 400."""
    document = parsed(body)
    assert document is not None
    return outcome(api, document)


def outcome(api: Api, document: dict[str, Any]) -> Any:
    try:
        return api.read(document)
    except BadRequest as bad:
        return bad.error.message


CALL = {"id": "call_7", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES: list[Any] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "so", "reasoning": "hm", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_7", "content": "1"},
    {"role": "tool", "tool_call_id": "call_9", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
    {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    {"role": "function", "name": "f", "content": "2"},
    {"role": "user", "content": 3},
    {"role": "nobody", "content": "x"},
    {"role": "tool", "content": "x"},
    5,
]
FUNCTION_CALL = {"type": "function_call", "id": "fc_3", "call_id": "call_3", "name": "f", "arguments": "{}"}
INPUT: list[Any] = [
    {"role": "user", "content": "hi"},
    FUNCTION_CALL,
    {"type": "function_call_output", "call_id": "call_3", "output": "1"},
    {"type": "function_call_output", "name": "f", "output": "2"},
    {"type": "reasoning", "summary": [{"text": "hm"}]},
    {"type": "reasoning", "encrypted_content": "x"},
    {"type": "item_reference", "id": "fc_3"},
    {"type": "item_reference", "id": "fc_8"},
    {"type": "function_call", "id": "fc_8", "name": "g", "arguments": "{}"},
    {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "local_shell_call_output", "id": "lsh_1", "output": "3"},
    {"type": "web_search_call", "id": "ws_1"},
    {"type": "additional_tools", "tools": []},
    {"type": "unheard_of", "text": "words"},
    {"type": "message", "role": "nobody", "content": "x"},
    {"role": "user", "content": 3},
    {"type": "function_call"},
    5,
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_was_read_before_is_read_the_same(data: st.DataObject) -> None:
    """Both readers return the same for a history, errors included, whatever part of it is cached."""
    api, known = data.draw(st.sampled_from([(CHAT, MESSAGES), (RESPONSES, INPUT)]))
    items = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=12))
    tools = [{"type": "function", "function": {"name": "f"}}] if api is CHAT else [{"type": "local_shell"}]
    for length in data.draw(st.lists(st.integers(0, len(items)), max_size=5)):
        body = json.dumps({"model": "m", KEYS[api]: items[:length], "tools": tools}).encode()
        document = read_body(body)
        assert document is not None
        assert outcome(api, document) == fresh(api, body)
