from __future__ import annotations

import ast
import json
import keyword
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.response.call_syntax import read_call, read_calls, read_record
from toolsim.response.parsed_call import Json, Values


@each(
    ("text", "values"),
    [
        ("f()", []),
        ("f(1, 'a', True)", [(None, 1), (None, "a"), (None, True)]),
        ("f(a=1, b=None)", [("a", 1), ("b", None)]),
        ('f(a: 1, b: "x: y")', [("a", 1), ("b", "x: y")]),
        ("f(a := 1)", None),
        ("f(a: int)", None),
        ("f(a: str = 'x')", None),
        ("f(1, b=[2, {'c': 3}])", [(None, 1), ("b", [2, {"c": 3}])]),
        ('f("a, b)", )', [(None, "a, b)")]),
        ("f(a == 1)", None),
        ("f(x)", None),
        ("f(a=x)", None),
        ("f(a=1, 2)", None),
        ("f(1 + 2)", None),
        ("f(g(1))", None),
        ("f('a' 'b')", [(None, "ab")]),
        ("f(,)", None),
        ("f(1)x", None),
        ("f", None),
        ("f('a", None),
        ("f(" + "1," * 100 + ")", None),
    ],
)
def test_literal_values_are_read(text: str, values: list[tuple[str | None, Any]] | None) -> None:
    """In a call such as ``f(1, b="x")``, positional and keyword literals are parsed in order. Text with an expression
    that would have to be evaluated is not a call.
    """
    got = read_call(text)
    if values is None:
        assert got is None
        return
    assert got is not None
    assert isinstance(got.given, Values)
    assert [(key, value.value) for key, value in got.given.items] == values


@pytest.mark.parametrize(
    "literal",
    [
        r"'caf\xe9'",
        r'"caf\xe9"',
        r"'\u00e9\U0001F600'",
        r"'nul\0end\101\1234'",
        r"'\a\b\f\v\n\r\t'",
        r"'\N{BULLET} \x22 \x27 \x5c'",
        "'one \\\nline'",
        r"'\\x41 \\\x41'",
        r"""{'text': ['\x41', "\x42"]}""",
    ],
)
def test_escapes_have_python_values(literal: str) -> None:
    """Escapes have the same value as in Python, including in strings within lists and dicts."""
    got = read_call(f"f(1, {literal})")
    assert got is not None
    assert isinstance(got.given, Values)
    assert got.given.items[1][1].value == ast.literal_eval(literal)
    assert json.loads(got.given.items[1][1].source) == got.given.items[1][1].value


@pytest.mark.parametrize("escape", [r"\d", r"\x4", r"\U0011FFFF", r"\N{NO SUCH THING}", r"\N"])
def test_unknown_escape_is_text(escape: str) -> None:
    """If Python does not define an escape, the backslash is kept and treated as plain text."""
    got = read_call(f"f('a{escape}z')")
    assert got is not None
    assert isinstance(got.given, Values)
    assert got.given.items[0][1].value == f"a{escape}z"


def test_single_object_is_the_arguments() -> None:
    """If the parentheses contain a single object, this object contains all arguments, rather than being the value of
    the first argument.
    """
    got = read_call('f({"a": 1.0})')
    assert got is not None
    assert isinstance(got.given, Json)
    assert got.given.source == '{"a": 1.0}'


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc é'\"", max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), LITERALS, max_size=4))
def test_python_repr_is_read_back(arguments: dict[str, Any]) -> None:
    """Python's ``repr`` of a value is parsed back to the same value."""
    arguments = {key: value for key, value in arguments.items() if not keyword.iskeyword(key)}
    text = f"f({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    got = read_call(text)
    assert got is not None
    assert isinstance(got.given, Values)
    assert {str(key): value.value for key, value in got.given.items} == arguments
    assert all(json.loads(value.source) == value.value for _, value in got.given.items)
    assert not arguments or ast.parse(text)


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ('[function_call id=fc_1 call_id=fc_1 name=f arguments={"a":1}]', "f", {"a": 1}),
        ('[function_call name="f" arguments="{}"]', "f", "{}"),
        ("[function_call name=f  arguments = {'a': True}]", "f", {"a": True}),
        ("[function_call id=fc_1 arguments={}]", None, None),
        ("[function_call name=f]", None, None),
        ("[function_call name=f arguments={} more]", None, None),
        ("[function_call_output call_id=fc_1 output={}]", None, None),
    ],
)
def test_call_records_are_parsed(text: str, name: str | None, arguments: Any) -> None:
    """A ``[function_call …]`` record, which the history shows to the model, is parsed as a call in all spellings that
    models use.
    """
    got = read_record(text)
    assert (got and got.name) == name
    assert (got.given.value if got and isinstance(got.given, Json) else None) == arguments


@given(st.text(max_size=60))
def test_any_text_is_parsed_without_an_exception(text: str) -> None:
    """Parsing arbitrary text as arguments or as a record raises no exception."""
    read_call(f"f({text})")
    read_call(f"f({'[' * 9000}{text})")
    read_record(f"[function_call name=f arguments={text}]")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("f(1)", ["f"]),
        ("[f(a='),g(', b=[1]), g()]", ["f", "g"]),
        (" [ f(1) ] ", ["f"]),
        ("[f(x)]", None),
        ("[f(1), 2]", None),
        ("[]", None),
        ("[f(1)", ["f"]),
        ("", None),
    ],
)
def test_list_of_calls_is_read(text: str, names: list[str] | None) -> None:
    """A list of calls is parsed as several calls. If any of its items is not a call, the entire list is one broken
    call.
    """
    got = read_calls(text)
    assert ([call.name for call in got] if not got[0].broken else None) == names
