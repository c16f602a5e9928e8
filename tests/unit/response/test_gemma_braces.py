"""Tests for the call format of Gemma 4, with values like those in the tests of vLLM and Dynamo."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from support.growth import LINEAR, growth
from toolsim.response.gemma_braces import QUOTE, read_gemma
from toolsim.response.parsed_call import Json


def as_template(value: Any, quote: str = QUOTE) -> str:
    """Return a value in the notation of Gemma's chat template."""
    match value:
        case dict():
            return "{" + ",".join(f"{key}:{as_template(member, quote)}" for key, member in value.items()) + "}"
        case list():
            return "[" + ",".join(as_template(item, quote) for item in value) + "]"
        case str():
            return f"{quote}{value}{quote}"
    return json.dumps(value)


KEYS = st.from_regex(r"[a-z_]{1,5}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text().filter(lambda text: QUOTE not in text + "<|"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_value_is_read_back(value: dict[str, Any]) -> None:
    """A value in the notation of Gemma's chat template is parsed to the same value, regardless of the content of its
    strings.
    """
    (call,) = read_gemma(f"call:f{as_template(value)}")
    assert not call.broken
    assert isinstance(call.given, Json)
    assert call.given.value == value


@each(
    ("body", "value"),
    [
        ("call:f{}", {}),
        (" call: f {a:1.50}", {"a": 1.5}),
        ('call:f{"a b":1}', {"a b": 1}),
        (f"call:f{{{QUOTE}3{QUOTE}:{QUOTE}x{QUOTE}}}", {"3": "x"}),
        ("call:f{a:New York, NY,b:2}", {"a": "New York, NY", "b": 2}),
        ("call:f{a:[x, y]}", {"a": ["x", "y"]}),
        ("call:f{a:true,b:True}", {"a": True, "b": True}),
        ("call:f{a:None}", {"a": None}),
        ("call:f{a:'ls -la',b:['x', 'y']}", {"a": "ls -la", "b": ["x", "y"]}),
        ("call:f{a:'it's',b:'\\''}", {"a": "it's", "b": "'"}),
        ("call:f{a:'tis}", {"a": "'tis"}),
        ("call:f{'a':1}", {"a": 1}),
        ("call:f{a=1,b=[2]}", {"a": 1, "b": [2]}),
        ('call:f(a: "x", b: 3)', {"a": "x", "b": 3}),
        ("call:f({a:1})", {"a": 1}),
        ("call:f()", {}),
        ("f{a:1}", {"a": 1}),
        (":f{a:1}", {"a": 1}),
        (f"call:f{{a:{QUOTE}{QUOTE}x{QUOTE}}}", {"a": "x"}),
        (f"call:f{{a:{QUOTE}x{QUOTE}{QUOTE}}}", {"a": "x"}),
        (f"call:f{{a:x{QUOTE}}}", {"a": "x"}),
        (f"call:f{{a:x, y{QUOTE},b:1}}", {"a": "x, y", "b": 1}),
        (f"call:f{{a:[x{QUOTE},{QUOTE}y{QUOTE}]}}", {"a": ["x", "y"]}),
        (f"call:f{{a:'x{QUOTE}}}", {"a": "x"}),
        (f"call:f{{a:x{QUOTE}y{QUOTE}}}", None),
        (f"call:f{{a:{QUOTE}x,b:{QUOTE}y{QUOTE}}}", None),
        ('call:f{a:<|"x}', None),
        ('call:f{a:"x}"}', {"a": "x}"}),
        ("call:f{a:}", {"a": ""}),
        ("call:f{a:108.}", {"a": "108."}),
        (":call:f{a:1}", {"a": 1}),
        ("call:f{a:1}<turn|>", {"a": 1}),
        ("call:f{a:" + "9" * 5000 + "}", {"a": 10**4299}),
        ("call:f{a:1}}", {"a": 1}),
        ("call:f{a:1}x", None),
        ("call:f{a:[1}", None),
        ("call:f{a:1", {"a": 1}),
        (f"call:f{{a:{QUOTE}x}}", None),
        ("call:f{a}", None),
        ("call:f{1", None),
        ("call:f", None),
        ("f{}", {}),
        ("call:f{a:" + "[" * 500, None),
    ],
)
def test_slips_are_repaired_or_rejected(body: str, value: Any) -> None:
    """In Gemma's notation, unquoted strings are accepted as strings. Unclosed brackets, keys or quotes cannot be
    repaired.
    """
    *_, call = read_gemma(body)
    assert (call.given.value if isinstance(call.given, Json) and not call.broken else None) == value


@given(st.text('{}[]:,<|">ab1 \n', max_size=40))
def test_any_text(text: str) -> None:
    """Parsing arbitrary text raises no exception, and yields either a broken call or valid JSON."""
    *_, call = read_gemma("call:f{" + text)
    assert call.broken or json.loads(call.given.source if isinstance(call.given, Json) else "") is not None


def test_time_is_linear() -> None:
    """Long bodies in Gemma's notation are parsed in linear time."""
    for scrap in ("a:b,", "b, ", f"a:{QUOTE}x{QUOTE},", "x"):
        assert growth(lambda count, scrap=scrap: read_gemma("call:f{" + scrap * count + "}"), 2_000) < LINEAR
