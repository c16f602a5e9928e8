"""Tests for parsing the arguments and other members of a call, for which the exact source text is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.response.parsed_call import (
    Json,
    decode,
    escape,
    name_of,
    read_elements,
    read_json,
    read_object,
    read_value,
    read_xml,
    trim,
    unescape,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=5), st.sampled_from([None, 2]), st.text(max_size=3))
def test_members_keep_their_source(value: dict[str, Any], indent: int | None, after: str) -> None:
    """The members of a parsed object have the same values as with ``json``, and each member keeps its source text."""
    text = json.dumps(value, indent=indent)
    got = read_object(text + after, 0)
    assert got is not None
    members, end = got
    assert end == len(text)
    assert {key: member.value for key, member in members.items()} == value
    for member in members.values():
        assert member.source in text
        assert json.loads(member.source) == member.value


@each("text", ["", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,}', "{a:1}", '{"a" 1}', "[]", '{"a":1]'])
def test_incomplete_object_yields_none(text: str) -> None:
    """If the text is not a complete object, parsing returns None rather than a partial object."""
    assert read_object(text, 0) is None


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "[1,NaN]", "[" * 200_000, '"\n"', "1x", ""])
def test_invalid_json_yields_none(text: str) -> None:
    """Text that is not valid JSON yields None, even if Python's parser would accept the text or overflow the stack."""
    assert read_value(text) is None


def test_integers_of_any_length() -> None:
    """An integer that exceeds Python's digit limit becomes a large integer with the same sign. All other integers are
    exact.
    """
    digits = "7" * 5000
    assert decode(f"[{digits},-{digits},12]", 0) == ([10**4299, -(10**4299), 12], 10_007)


def test_number_of_members_is_limited() -> None:
    assert read_object("{" + ",".join(f'"{i}":0' for i in range(256)) + "}", 0) is not None
    assert read_object("{" + ",".join(f'"{i}":0' for i in range(257)) + "}", 0) is None


@given(st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), min_size=2, max_size=6), st.text(" \n,;"))
def test_adjacent_objects_are_split(objects: list[dict[str, Any]], between: str) -> None:
    """Adjacent objects are parsed one after another, and each keeps its source text."""
    sources = [json.dumps(value) for value in objects]
    assert [call.source for call in read_json(between.join(sources), closed=True, repair=True)] == sources
    assert [call.source for call in read_json(f"[{between.join(sources)}]", closed=True, repair=True)] == sources


@given(st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), min_size=1, max_size=6))
def test_list_needs_no_repair(objects: list[dict[str, Any]]) -> None:
    """A list of calls in the format that the manifest requests is parsed without repairs."""
    body = f" {json.dumps(objects)}\n"
    plain, mended = (read_json(body, closed=True, repair=repair) for repair in (False, True))
    assert [call.source for call in plain] == [json.dumps(value) for value in objects]
    assert not any(call.lossy_repairs or "SEVERAL" in str(call.codes) for call in mended)


@pytest.mark.parametrize(
    "body", ["[]", "[1]", '[{"name":"a"},]', '[{"name":"a"}', '[{"name":"a"}] more', '{"name":"a"},']
)
def test_other_text_is_a_broken_call_without_repair(body: str) -> None:
    """With repairs turned off, text is one broken call unless it is an object or a complete list of objects."""
    (call,) = read_json(body, closed=True, repair=False)
    assert call.broken
    assert call.source == body


def test_unclosed_array_yields_its_objects() -> None:
    """Each object in an array is a call, even if the end of the array is missing or malformed."""
    for body, lossy_repairs in (
        ('[{"name":"a"},{"name":"b"}', ("MISSING_BRACE",)),
        ('[{"name":"a"},{"name":"b"},]', ()),
    ):
        calls = read_json(body, closed=True, repair=True)
        assert [call.name for call in calls] == ["a", "b"]
        assert calls[-1].lossy_repairs == lossy_repairs


def test_unparsable_rest_is_a_broken_call() -> None:
    """All text after the last object that can be parsed becomes a single broken call."""
    calls = read_json('{"name":"a"} and more {"name":"b"}', closed=True, repair=True)
    assert [(call.source, call.broken) for call in calls] == [
        ('{"name":"a"}', False),
        ('and more {"name":"b"}', True),
    ]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('{"name":"f"', "f"),
        (" [ { 'name' : 'f' oops", "f"),
        ('{"function":{"name":"f"', "f"),
        ("\n<name>f</name><x>", "f"),
        ('{"arguments":{"name":"f"', None),
        ('{"name":" "', None),
        ('{"name":"f', None),
        ("", None),
    ],
)
def test_name_is_read_from_the_beginning(source: str, name: str | None) -> None:
    """The name of a broken call is read only at the beginning of its text, because a name elsewhere might be an
    argument.
    """
    assert name_of(source) == name


@given(st.lists(st.tuples(st.from_regex(r"[a-z_][a-z0-9_.-]*", fullmatch=True), st.text()), max_size=6))
def test_elements_round_trip(elements: list[tuple[str, str]]) -> None:
    """XML elements are parsed to the original values, provided that the values contain no closing tags."""
    elements = [(name, value.replace("</", "< /")) for name, value in elements]
    assert read_elements("\n".join(f"<{name}>{value}</{name}>" for name, value in elements)) == elements


@pytest.mark.parametrize("text", ["x", "<a>", "<a>1</b>", "<a>1</a>x", "</a>", "<>1</>", "<a b</a>", "<a/>" * 300])
def test_other_text_makes_elements_unreadable(text: str) -> None:
    """If a text contains anything except XML elements and whitespace, none of its elements is accepted."""
    assert read_elements(text) is None


def test_first_xml_element_must_be_the_name() -> None:
    assert read_xml("<a>1</a><name>f</name>").broken
    assert read_xml("<name> f </name>").name == "f"


@given(st.text())
def test_unescaping_reverses_escaping(text: str) -> None:
    """Unescaping reverses the escaping of the five XML entities, even in text that already contained entities."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    assert unescape(escaped.replace("'", "&apos;")) == text


@given(st.text("a&;<>]![CDAT \n", max_size=30))
def test_unescaping_an_escaped_value_returns_the_value(text: str) -> None:
    """Unescaping an escaped value or a CDATA section returns the original value."""
    section = f"<![CDATA[{text.replace(']]>', ']]]]><![CDATA[>')}]]>"
    assert unescape(escape(section)) == text
    if not text.strip().startswith("<![CDATA["):
        assert unescape(escape(text)) == text


@pytest.mark.parametrize(
    ("text", "trimmed"),
    [
        ("\na\nb\n", "a\nb"),
        ("\r\na\r\n", "a"),
        ("\n\na\n", "\na"),
        ("\n\n", ""),
        ("\n", "\n"),
        ("\r\n", "\r\n"),
        ("\na", "\na"),
        ("a\n", "a\n"),
        (" \na\n", " \na\n"),
    ],
)
def test_trim_removes_a_newline_at_both_ends(text: str, trimmed: str) -> None:
    """If the text both begins and ends with a newline, one newline is removed from each end. Otherwise, the text is
    unchanged.
    """
    assert trim(text) == trimmed


def test_read_value_keeps_whitespace() -> None:
    """A value's source includes the whitespace around the value. Text that contains two values is not parsed."""
    assert read_value(' {"a":1}\n') == Json(' {"a":1}\n', {"a": 1})
    assert read_value("{} {}") is None
