import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.pages.json_text import MAX_INLINE, compact, pretty

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"city":"Köln","days":[1,2]}', '{"city": "Köln", "days": [1, 2]}'),
        ('{"a":1.0,"b":1e400,"c":12345678901234567890123}', '{"a": 1.0, "b": 1e400, "c": 12345678901234567890123}'),
        ("{}", "{}"),
        ("[ ]", "[]"),
        ('"a"', '"a"'),
        (" 1.50 ", "1.50"),
        ("not json", "not json"),
        ("", ""),
        ('{"a":', '{"a":'),
    ],
)
def test_short_values_stay_on_one_line(text, shown):
    """Short JSON values are shown on one line, and numbers keep their notation. Text that is not JSON is shown
    unchanged.
    """
    assert pretty(text) == shown


def test_only_long_values_are_broken():
    """An object or list is broken into several lines only if it is too long for one line."""
    text = json.dumps({"name": "a" * 60, "list": [{"x": 1}, {"y": 2}], "text": "b" * 20})
    assert pretty(text) == (
        '{\n  "name": "' + "a" * 60 + '",\n  "list": [{"x": 1}, {"y": 2}],\n  "text": "' + "b" * 20 + '"\n}'
    )


def test_multi_line_string_is_shown_line_by_line():
    """The lines of a multi-line JSON string are shown as separate lines. An escaped backslash followed by ``n`` is not
    a line break.
    """
    assert pretty(json.dumps({"path": "a.py", "content": "def f():\n    return 1"})) == (
        '{\n  "path": "a.py",\n  "content":\n  ┆ def f():\n  ┆     return 1\n}'
    )
    assert pretty(r'{"path":"C:\\new"}') == r'{"path": "C:\\new"}'
    assert pretty(json.dumps(["a\nb"])) == "[\n  -\n  ┆ a\n  ┆ b\n]"


@given(VALUES)
def test_formatting_preserves_the_value(value):
    """Unless it contains a multi-line string, formatted JSON parses to the original value. Short values take one
    line.
    """
    text = json.dumps(value)
    shown = pretty(text)
    if "┆" not in shown:
        assert json.loads(shown) == value
    if len(text) <= MAX_INLINE // 4 and "\\n" not in text:
        assert "\n" not in shown


def test_deep_values_are_shown_without_indentation():
    """Values that are nested too deeply are shown without indentation and do not raise an exception."""
    assert pretty('{"a":' * 60 + "1" + "}" * 60).count("\n") <= 100
    assert pretty("[" * 100_000) == "[" * 100_000
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert compact(deep) == "…"
    assert compact({"ä": 1}) == '{"ä": 1}'
