from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsimlib.response.repeated import split_repeated


@pytest.mark.parametrize(
    ("text", "keys", "objects"),
    [
        ('{"a": 1, "a": 2}', ("a",), ['{"a": 1}', '{"a": 2}']),
        ('{"u": 1.0, "a": 1, "a": 2}', ("a",), ['{"u": 1.0, "a": 1}', '{"u": 1.0, "a": 2}']),
        ('{"a": 1, "b": 1, "a": 2, "b": 2}', ("a", "b"), ['{"a": 1, "b": 1}', '{"a": 2, "b": 2}']),
    ],
)
def test_repeated_keys_are_several_objects(text: str, keys: tuple[str, ...], objects: list[str]) -> None:
    """Keys that are repeated equally often make as many objects; keys that stand once are in each of them."""
    got = split_repeated(text)
    assert got is not None
    assert got.keys == keys
    assert [each.source for each in got.objects] == objects
    assert [each.value for each in got.objects] == [json.loads(each) for each in objects]


@pytest.mark.parametrize(
    "text",
    [
        "{}", '{"a": 1}', '{"a": 1, "a": 1}', '{"a": 1, "a": 2, "a": 3, "b": 1, "b": 2}', "[]", '{"a": 1, "a": ', "",
        '{"a": 1, "a": 2, "t": "' + "x" * 5000 + '"}',
    ],
)  # fmt: skip
def test_what_is_one_object(text: str) -> None:
    """No repetition, the same value again, unequal numbers, something else, or something long: nothing is split."""
    assert split_repeated(text) is None


@given(st.dictionaries(st.text(max_size=3), st.integers(), max_size=5))
def test_plain_objects_are_left_alone(value: dict[str, int]) -> None:
    """An object without repeated keys is never split."""
    assert split_repeated(json.dumps(value)) is None
