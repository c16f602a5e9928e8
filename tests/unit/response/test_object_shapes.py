from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.response.object_shapes import split_arguments, split_repeated
from toolsim.schema import compile_schema


@pytest.mark.parametrize(
    ("text", "objects"),
    [
        ('{"a": 1, "a": 2}', ['{"a": 1}', '{"a": 2}']),
        ('{"u": 1.0, "a": 1, "a": 2}', ['{"u": 1.0, "a": 1}', '{"u": 1.0, "a": 2}']),
        ('{"a": 1, "b": 1, "a": 2, "b": 2}', ['{"a": 1, "b": 1}', '{"a": 2, "b": 2}']),
    ],
)
def test_repeated_keys_become_several_objects(text: str, objects: list[str]) -> None:
    """If several keys of a JSON object are repeated equally often, the object is split into that many objects. Keys
    that occur only once are copied to each of them.
    """
    got = split_repeated(text)
    assert [part.source for part in got] == objects
    assert [part.value for part in got] == [json.loads(text) for text in objects]


@pytest.mark.parametrize(
    "text",
    [
        "{}", '{"a": 1}', '{"a": 1, "a": 1}', '{"a": 1, "a": 2, "a": 3, "b": 1, "b": 2}', "[]", '{"a": 1, "a": ', "",
        '{"a": 1, "a": 2, "t": "' + "x" * 5000 + '"}',
    ],
)  # fmt: skip
def test_other_repetitions_stay_one_object(text: str) -> None:
    """An object is not split if no key repeats, if the repeated values are equal, if the repeated keys occur different
    numbers of times, or if the object's text is long.
    """
    assert split_repeated(text) == []


@given(st.dictionaries(st.text(max_size=3), st.integers(), max_size=5))
def test_plain_objects_are_never_split(value: dict[str, int]) -> None:
    assert split_repeated(json.dumps(value)) == []


SCHEMA = compile_schema(
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "n": {"type": "number"},
            "n2": {"type": "number"},
            "any": {},
        },
    }
)


@pytest.mark.parametrize(
    "others",
    [
        {"additionalProperties": True},
        {"additionalProperties": {"type": "string"}},
        {"patternProperties": {"^city\\d$": {"type": "string"}}, "additionalProperties": False},
        {"allOf": [{"patternProperties": {"2$": {}}}]},
        {"unevaluatedProperties": True},
    ],
)
def test_numbered_keys_stay_if_the_schema_allows_them(others: dict[str, object]) -> None:
    """A call with a numbered key such as ``city2`` remains a single call if the schema explicitly allows additional
    keys.
    """
    text = '{"city": "a", "city2": "b"}'
    for told in (others, {}, {"additionalProperties": False}):
        schema = compile_schema({"type": "object", "properties": {"city": {"type": "string"}}, **told})
        assert (split_arguments(text, schema)[1] == []) is (told is others)


@each(
    ("text", "code", "objects"),
    [
        (
            '{"city": "a", "city2": "b", "n": 1.0}',
            "REPEATED_KEYS",
            ['{"city": "a", "n": 1.0}', '{"city": "b", "n": 1.0}'],
        ),
        ('{"city_1": "a", "city_2": "b"}', "REPEATED_KEYS", ['{"city": "a"}', '{"city": "b"}']),
        ('{"city": ["a", "b"], "n": 1}', "LISTED_VALUES", ['{"city": "a", "n": 1}', '{"city": "b", "n": 1}']),
        ('{"city": [ "a","b" ], "n": [1.0, 2]}', "LISTED_VALUES", ['{"city": "a", "n": 1.0}', '{"city": "b", "n": 2}']),
        ('{"city": ["a"]}', None, []),
        ('{"city": []}', None, []),
        ('{"city": ["a", "b"], "n": [1, 2, 3]}', None, []),
        ('{"n": 1, "n2": 2}', None, []),
        ('{"town": "a", "town2": "b"}', None, []),
        ('{"tags": ["a", "b"]}', None, []),
        ('{"tags": ["a"], "tags2": ["b"]}', None, []),
        ('{"any": ["a", "b"]}', None, []),
        ('{"town": ["a", "b"]}', None, []),
        ("[]", None, []),
    ],
)
def test_collapsed_calls_are_expanded(text: str, code: str | None, objects: list[str]) -> None:
    """If the arguments contain numbered keys or lists that the schema does not allow, the call is expanded into several
    calls.
    """
    found, parts = split_arguments(text, SCHEMA)
    assert [part.source for part in parts] == objects
    assert found == code or not parts
