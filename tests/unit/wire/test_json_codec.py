from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from support.growth import LINEAR, growth
from toolsim.wire.json_codec import (
    MAX_DEPTH,
    Joiner,
    as_read,
    dump,
    dump_as_read,
    dump_string,
    encode,
    load,
    parse_object,
    read_body,
    too_deep,
    whole_text,
)

GRIN = "\U0001f600"
HALVES = "\ud83d", "\ude00"


@given(st.text())
def test_any_string_survives_a_round_trip(text: str) -> None:
    """Any string is encoded as one line of UTF-8, which decodes to the same string, except for lone surrogates."""
    written = dump_string(text)
    assert json.loads(written.encode().decode()) == whole_text(text)
    assert "\n" not in written


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers() | st.none(), max_size=3))
def test_any_value_is_one_line(value: dict[str, object]) -> None:
    """Any value is encoded as one line of valid UTF-8."""
    written = dump(value)
    assert json.loads(written.encode().decode()) == json.loads(whole_text(json.dumps(value, ensure_ascii=False)))
    assert "\n" not in written


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([*HALVES, 10**30, 1e-7]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    )
)
def test_cached_encoder_equals_json(value: object) -> None:
    """The cached encoder has the same output as ``json.dumps`` for any value."""
    expected = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert encode(value) == expected
    assert dump(value) == whole_text(expected)


def test_invalid_values_are_refused() -> None:
    """Unknown types and circular values raise the same exceptions as with ``json``."""
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        encode({"a": {1}})
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        encode(endless)


@pytest.mark.parametrize(
    ("text", "whole"),
    [("", ""), ("a", "a"), ("ü", "ü"), (GRIN, GRIN), ("".join(HALVES), GRIN), ("a\ud83d", "a�"), ("\ude00b", "�b")],
)
def test_surrogate_halves_are_joined(text: str, whole: str) -> None:
    """Adjacent halves of a surrogate pair are joined. A half without a partner is replaced with U+FFFD."""
    assert whole_text(text) == whole


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"{}", {}),
        (b'{"a":"\\ud83d\\ude00"}', {"a": GRIN}),
        (b'{"a":"\\ud83d","\\uDE00":[1.5]}', {"a": "�", "�": [1.5]}),
        (b"[]", None),
        (b"{", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
        (b'{"a":' + b"9" * 5_000 + b"}", None),
    ],
)
def test_parse_object(data: bytes, value: object) -> None:
    """A JSON object is parsed, and the halves of surrogate pairs in it are joined. For any other text, the result is
    None.
    """
    assert parse_object(data) == value


def test_numbers_can_be_refused() -> None:
    """A nonstandard number such as NaN is accepted, unless the caller refuses such numbers."""

    def refuse(_text: str) -> None:
        raise ValueError

    assert math.isnan((parse_object(b'{"a":NaN}') or {})["a"])
    assert parse_object(b'{"a":NaN}', parse_constant=refuse) is None


@given(st.text(), st.data())
def test_joiner(text: str, data: st.DataObject) -> None:
    """Joining text deltas keeps all characters, even if a delta ends within a character."""
    units = text.encode("utf-16-le", "surrogatepass")
    joiner: Joiner[str] = Joiner()
    joined, at = "", 0
    while at < len(units):
        size = 2 * data.draw(st.integers(1, 3))
        joined += joiner.join("a", units[at : at + size].decode("utf-16-le", "surrogatepass"))
        assert joiner.join("b", "x") == "x"
        at += size
    assert joined + joiner.end("a") == whole_text(text)
    assert joiner.end("a") == ""
    assert joiner.open_keys() == []


@each(
    ("body", "value"),
    [
        ('{"a": 1, "b": "\\ud83d\\ude00"}', {"a": 1, "b": GRIN}),
        ('{"a": "\\ud83d"}', {"a": "�"}),
        ("\ufeff" + '{"a": []}', {"a": []}),
        ('{"a": -1e-7}', {"a": -1e-7}),
        ('{"a": NaN}', None),
        ('{"a": -Infinity}', None),
        ('{"a": 1e999}', None),
        ("[1]", None),
        ('{"a": 1', None),
        ('{"a": ' + "[" * 100_000, None),
        ("", None),
    ],
)
def test_body_must_be_a_json_object(body: str, value: object) -> None:
    """A body is accepted only if it is a JSON object and all its numbers can be written as JSON again."""
    assert read_body(body.encode()) == value


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?", fullmatch=True))
def test_numbers_keep_their_digits(number: str) -> None:
    """Numbers are written with exactly the digits that were read."""
    for text in ("x", "\\ud83d"):
        body = f'{{"a":[{{"n":{number}}}],"b":"{text}"}}'
        read = parse_object(body.encode(), parse_float=as_read, parse_int=as_read)
        assert dump_as_read(read) == body.replace("\\ud83d", "�")


def test_value_too_deep_for_digits_is_encoded() -> None:
    """A value that is nested too deeply to preserve the digits of its numbers is still encoded."""
    deep: list[Any] = []
    for _ in range(600):
        deep = [deep]
    assert dump_as_read(deep) == dump(deep)


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}"), ('[{"b":', "}]")])
@pytest.mark.parametrize("around", ["%s", '["[[[", %s]', '["\\"[", %s, "\\\\"]'])
def test_depth_counts_only_arrays_and_objects(opened: str, closed: str, around: str) -> None:
    """Only nested arrays and objects count toward the depth limit. Brackets within strings do not count."""
    for levels in (MAX_DEPTH - 8, MAX_DEPTH + 8):
        count = levels // len(closed)
        text = around % f"{opened * count}0{closed * count}"
        body = f'{{"x":{text}}}'.encode()
        assert too_deep(text) is too_deep(text.encode()) is (levels > MAX_DEPTH)
        if levels > MAX_DEPTH:
            assert json.loads(text)
            with pytest.raises(ValueError, match="too deeply"):
                load(text)
            assert parse_object(body) is None
        else:
            assert load(text) == json.loads(text)
            assert parse_object(body) is not None
    assert not too_deep("[]" * 10_000)
    assert not too_deep('"' + "[" * 10_000)


@pytest.mark.parametrize("unit", ['"\\"', "[", '"a[",', "\\", '["'])
def test_depth_is_measured_in_linear_time(unit: str) -> None:
    """Measuring the depth takes linear time for any text, even if it is not JSON."""
    assert growth(lambda size: too_deep("[" * 600 + unit * size), 50_000) < LINEAR
