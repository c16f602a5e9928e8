from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan
from support.each import each
from toolsim.core.plan import Tool
from toolsim.response.form import Form, Kind
from toolsim.response.toolbox import Toolbox

TOOLBOX = Toolbox(
    plan(
        "chat",
        "chat",
        True,
        [Tool(name, name, parameters={"properties": {"a": {}, "type": {}}}) for name in ("f", "g")],
    )
)


def read(
    text: str, kind: Kind = "json", mark: str = "", size: int = 0, *, repair: bool = True
) -> tuple[int, bool | None]:
    """Feed text in chunks of ``size`` characters. Return the offset at which parsing stops, and True if the text is an
    untagged call of this ``kind``, False if it is not, or None if more text is needed.
    """
    form = Form(kind, TOOLBOX, mark, repair=repair)
    done, rest = 0, ""
    # In production, ``Form`` receives text only after the beginning of the call, such as ``f{``, is complete.
    head = text.index("{") + 1 if kind in ("braces", "gemma") else 0
    cuts = [cut for cut in range(0, len(text), size or len(text)) if not 0 < cut < head]
    for start, stop in pairwise([*cuts, len(text)]):
        rest += text[start:stop]
        end, is_form = form.read(rest, 0, len(rest))
        done += end
        rest = rest[end:]
        if is_form is not None:
            return done, is_form
    return done, None


WHOLE: list[tuple[Kind, str]] = [
    ("json", '{"name": "f", "arguments": {"a": [1, {"b": "}"}]}}'),
    ("json", '[{"name": "f"}, {"name": "g"}]'),
    ("json", "{'name': 'f', name: \"g\"}"),
    ("json", '{"tool_calls": [{"function": {"name": "f", "arguments": "\\"{"}}]}'),
    ("json", "{}"),
    ("json", '{"name": "f", "a": [1], "type": "x"}'),
    ("json", '{"function": "f", "params": {"a": 1}}'),
    ("json", '[{"f": {"a": 1}}, {"g": {}, "f": {"a": "}"}}]'),
    ("syntax", "(a=1, b=[(2)])".replace("(2)", "2")),
    ("syntax", '("x)", \'y\\\')\', {"k": True})'),
    ("syntax", "(a: 1, b: 'x')"),
    ("list", "[f(a=1, b='x'), g()]"),
    ("list", '[ f("])", k: [1]) ]'),
    ("braces", 'f[ARGS]{"a": {"b": "}"}}'),
    ("braces", "f{'a': 1}"),
    ("gemma", 'call:f{a:<|"|>}] <| <|"|>,b:a<b}'),
    ("gemma", "call:f{a:it's, b:[1], c:{d:e}}"),
    ("record", '[function_call id=fc_1 name=f arguments={"a":"]"}]'),
]


@each(("kind", "text"), WHOLE)
@each("size", [0, 1, 3])
def test_form_ends_at_its_last_bracket(kind: Kind, text: str, size: int) -> None:
    """An untagged call is accepted at its last bracket, regardless of where its text is split and what text follows."""
    assert read(text + " tail }", kind, size=size) == (len(text), True)


@each(
    ("kind", "text", "at"),
    [
        ("json", '{"city": 1}', 6),
        ("json", '{"nameless": 1}', 10),
        ("json", '{"na": 1}', 4),
        ("json", '{"name": "h", ', 11),
        ("json", '{"type": "object", ', 16),
        ("json", "[1]", 1),
        ("json", '["name"]', 1),
        ("json", "[[", 1),
        ("json", "{int x", 3),
        ("json", "{{", 1),
        ("json", '{"name": "f" "x"', 13),
        ("json", '{"name": "f"]', 12),
        ("json", '[{"name": "f"], {', 14),
        ("json", '[{"name": "f"] "', 15),
        ("json", '{"arguments": {"a": 1)', 21),
        ("json", '{"arguments": {"a": 1 * 2}}', 22),
        ("json", '{"arguments": {"a": 1 + 2}}', 22),
        ("json", '{"name": "f" * 2}', 13),
        ("json", '{"function": {"name": "h"', 24),
        ("json", '{"function": "h", ', 15),
        ("json", '{"name": "f", "b": 1}', 16),
        ("json", '[{"name": "f", "a": 1}, {"a": 1}]', 27),
        ("json", '{"a": 1, "name": "f"}', 3),
        ("json", '{"fun": {}}', 5),
        ("json", '{"f": [1]}', 6),
        ("json", '{"f": "x"}', 6),
        ("json", '{"f": 1}', 6),
        ("json", '{"h": {}}', 2),
        ("json", '{"arguments": <', 14),
        ("syntax", "(a::int)", 3),
        ("list", "[f(1), 'x']", 8),
        ("list", "[f(1), [2]]", 7),
        ("list", "[f(g(1))]", 4),
        ("list", "[f = 1]", 4),
        ("braces", "f{ return a; }", 10),
        ("braces", "f{a = 1}", 5),
        ("gemma", "call:f{a:1]", 10),
        ("syntax", "(f(1))", 2),
        ("syntax", "(a b)", 3),
        ("syntax", "(*a)", 1),
    ],
)
@each("size", [0, 1])
def test_other_text_is_rejected_immediately(kind: Kind, text: str, at: int, size: int) -> None:
    """Parsing stops at the first key, name or character that cannot be part of a call (rules 1 to 3 in ``form.py``)."""
    end, is_form = read(text + " more", kind, size=size)
    assert is_form is False
    assert end <= at


@pytest.mark.parametrize("text", ["", '{"name": "f"', '{"name": "f\\', '{"na', "{", '{"arguments": {"a": "x'])
def test_unfinished_form_stays_undecided(text: str) -> None:
    """No decision is made while the text can still become an untagged call."""
    assert read(text or " ")[1] is None


def test_closing_fence_ends_json_with_missing_brackets() -> None:
    """An untagged JSON call in a code fence ends with the fence, even if brackets are missing. If a value is missing,
    the text is not a call (rule 4 in ``form.py``).
    """
    text = '{"name": "f", "arguments": {"a": 1}\n```'
    for size in (0, 1):
        assert read(text, mark="```", size=size) == (len(text) - 3, True)
        assert read('{"name": ```', mark="```", size=size)[1] is False
        assert read(text, size=size)[1] is False


def test_wrong_closing_brackets_are_accepted() -> None:
    """If repairs are allowed and only closing brackets remain, the number of brackets determines where the call ends,
    regardless of their types (rule 7 in ``form.py``).
    """
    text = '[{"name": "f", "arguments": {"a": [1}} ]]'
    for size in (0, 1):
        assert read(text + "]", size=size) == (len(text), True)
        assert read(text[:-1] + "```", mark="```", size=size) == (len(text) - 1, True)
        assert read(text, size=size, repair=False)[1] is False


def test_depth_is_bounded() -> None:
    """Text whose nesting exceeds the depth limit is not parsed as a call."""
    assert read('{"arguments": ' + "[" * 600)[1] is False


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.sampled_from([None, 2]), st.integers(1, 9))
def test_any_arguments(arguments: dict[str, object], indent: int | None, size: int) -> None:
    """An untagged call ends at its last brace, regardless of the arguments and the whitespace around them."""
    text = json.dumps({"name": "f", "arguments": arguments}, indent=indent)
    assert read(text + "}", size=size) == (len(text), True)


@given(st.text(), st.sampled_from(["json", "syntax", "record", "list", "braces"]), st.integers(1, 4))
def test_any_text(text: str, kind: Kind, size: int) -> None:
    """Parsing arbitrary text raises no exception. Whether the text is a call does not depend on where it is split."""
    opened = {"json": "{", "syntax": "(", "record": "[", "list": "[", "braces": "{"}[kind] + text
    assert read(opened, kind, size=size)[1] == read(opened, kind)[1]
