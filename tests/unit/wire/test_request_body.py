"""A body with cached tools equals the parser's result, whatever surrounds them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsimlib.wire import request_body
from toolsimlib.wire.json_codec import parse_object
from toolsimlib.wire.kept_arrays import KeptArrays
from toolsimlib.wire.request_body import read_body, source_of

TOOLS = [{"type": "function", "function": {"name": f"f_{number}", "description": "x" * 100}} for number in range(20)]
SOURCE = json.dumps(TOOLS)


def known() -> list[Any]:
    """Return the array that is cached for SOURCE."""
    body = read_body(f'{{"tools": {SOURCE}}}'.encode())
    assert body is not None
    assert source_of(body["tools"]) is not None
    tools: list[Any] = body["tools"]
    return tools


@pytest.mark.parametrize(
    "body",
    [
        '{"model": "m", "tools": %s, "messages": []}',
        '{"messages": [], "tools":\n%s}',
        '{ "tools" \t:\r\n %s }',
        '{"a": "\\"tools\\": [", "tools": %s}',
        '{"metadata": {"tools": []}, "tools": %s}',
        '{"tools": %s, "input": [{"tools": []}]}',
    ],
)
def test_the_same_tools_are_the_same_object(body: str) -> None:
    """A cached source after the body's own key gives the very same array; everything else is parsed."""
    tools = known()
    data = (body % SOURCE).encode()
    read = read_body(data)
    assert read == json.loads(data)
    assert read is not None
    assert read["tools"] is tools
    assert list(read) == list(json.loads(data))


@pytest.mark.parametrize(
    "body",
    [
        '{"input": [{"tools": %s}]}',
        '{"input": [{"tools": %s}], "tools": []}',
        '{"tools": %s, "tools": 1}',
        '{"tools": 1, "x": {"tools": %s}}',
        '{"a\\"tools": %s}',
        '{"tools": [%s]}',
        '[{"tools": %s}]',
        '{"tools": %s',
        '{"tools": %s]}',
        '{"tools": %s "x": 1}',
        '{"tools": %s, "x": NaN}',
        '{"tools": %s, "x": 1e999}',
        '{"tools": %s, "x": "\\ud83d"}',
        '{"tools": %s, "x": "\\ud83d\\ude00"}',
        "\ufeff" + '{"tools": %s}',
        '{"a\\\\"tools": %s}',
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_anything_else_is_for_the_parser(body: str, is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a source is not the value of the body's own tools, or a body is not JSON, the cache is not used."""
    monkeypatch.setattr(request_body, "_tools", KeptArrays(1, 1, 9_999))
    if is_known:
        known()
    data = (body % SOURCE).encode()
    slow = parse_object(data, parse_float=request_body._finite, parse_constant=request_body._finite)
    assert read_body(data) == slow


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["tools", 'a"tools', "x"]), inner),
    max_leaves=12,
)


@given(st.lists(st.tuples(st.sampled_from(["tools", "messages", "x"]), VALUES), max_size=4), st.booleans())
def test_any_body_is_read_as_parsed(pairs: list[tuple[str, Any]], ascii_only: bool) -> None:
    """Whatever a body holds and however often it is read, it equals the parser's result."""
    parts = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=ascii_only)}" for key, value in pairs]
    for members in (parts, [*parts, f'"tools":{SOURCE}']):
        data = f"{{{', '.join(members)}}}".encode("utf-8", "surrogatepass")
        slow = parse_object(data, parse_float=request_body._finite, parse_constant=request_body._finite)
        assert read_body(data) == slow
        assert read_body(data) == slow


def test_a_bounded_number_is_kept() -> None:
    """The last 32 arrays are cached if they are not short, and of larger ones as many as are not too large together."""
    read = [read_body(json.dumps({"tools": [*TOOLS, number]}).encode()) for number in range(35)]
    assert [source_of(body["tools"]) is not None for body in read if body] == [False] * 3 + [True] * 32
    for size, is_kept in ((1_023, False), (1_024, True), (2_097_152, True), (2_097_153, False)):
        tools = ["x" * (size - len('[""]'))]
        body = read_body(json.dumps({"tools": tools}).encode())
        assert body == {"tools": tools}
        assert (source_of(body["tools"]) is not None) == is_kept


def test_only_the_first_arrays_of_a_name_are_tried() -> None:
    """The body's own array is parsed as usual if it comes after more of them."""
    tools, other = known(), '{"tools": []}'
    for count, is_same in ((request_body._MAX_KEYS - 1, True), (request_body._MAX_KEYS, False)):
        body = read_body(f'{{"input": [{", ".join([other] * count)}], "tools": {SOURCE}}}'.encode())
        assert body is not None
        assert body["tools"] == tools
        assert (body["tools"] is tools) == is_same
