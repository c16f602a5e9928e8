"""Tests for JSON repair. Small errors are corrected, and all other text remains unchanged."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.response.repair import RepairedJson, fit_name, repair_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
ROOTS = st.lists(VALUES, max_size=5) | st.dictionaries(st.text(), VALUES, max_size=5)


@given(ROOTS, st.booleans(), st.sampled_from([None, 1]), st.text(max_size=3))
def test_valid_json_is_unchanged(value: Any, ascii_only: bool, indent: int | None, after: str) -> None:
    """Valid JSON is returned unchanged, up to its end and without a repair code."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert repair_json(text + after) == RepairedJson(text, len(text), ())


PRINTABLE = st.text(st.characters(max_codepoint=0x2FF).filter(str.isprintable))


@given(st.dictionaries(PRINTABLE, st.none() | st.booleans() | st.lists(PRINTABLE | st.integers(), max_size=4)))
def test_python_repr_is_repaired(value: Any) -> None:
    """The ``repr`` of a Python value is repaired to the JSON of this value."""
    mended = repair_json(repr(value))
    assert mended is not None
    assert json.loads(mended.text) == value


@given(ROOTS)
def test_missing_closing_brackets_are_added(value: Any) -> None:
    """Closing brackets that are missing at the end of the text are added, unless more text could follow."""
    text = json.dumps(value)
    cut = text.rstrip("]}")
    mended = repair_json(cut) if cut else None
    if cut.count('"') % 2 == 0 and mended is not None and cut != text:
        assert json.loads(mended.text) == value
        assert mended.codes == ("MISSING_BRACE",)
        assert repair_json(cut, closed=False) is None


@each(
    ("text", "mended"),
    [
        ("[1,2,]", "[1,2]"),
        ('{"a":1 , \n}', '{"a":1  \n}'),
        ('{"a":",}"}', '{"a":",}"}'),
        ('["a\nb\x07"]', '["a\\nb\\u0007"]'),
        (r'["\d\\d\n\u00e9\u00e\'"]', r"""["\\d\\d\n\u00e9\\u00e'"]"""),
        ('["a\\\nb"]', '["a\\\\\\nb"]'),
        (r"""['it\'s "x" \n']""", r"""["it's \"x\" \n"]"""),
        ('{"a":[1', '{"a":[1]}'),
        ('{"a":1,', '{"a":1}'),
        ("[1}", "[1]"),
        ('{"a":[{"b":1]]} ', '{"a":[{"b":1}]}'),
        ('{"a":[{"b":1]}', '{"a":[{"b":1}]}'),
        ("[True,False,None]", "[true,false,null]"),
    ],
)
def test_slips_are_corrected_in_place(text: str, mended: str) -> None:
    """Each small error is corrected where it occurs, and the surrounding text remains unchanged."""
    got = repair_json(text)
    assert got is not None
    assert got.text == mended
    json.loads(got.text)


@given(ROOTS, st.data())
def test_wrong_closing_brackets_are_corrected(value: Any, data: st.DataObject) -> None:
    """Wrong closing brackets at the end of the text are corrected, unless more text could follow."""
    text = json.dumps(value)
    bare = text.rstrip("]}")
    wrong = bare + "".join(data.draw(st.sampled_from("]}")) for _ in text[len(bare) :])
    if bare.count('"') % 2 == 0 and not bare.endswith(("{", "[")) and wrong != text:
        assert repair_json(wrong) == RepairedJson(text, len(text), ("WRONG_BRACKET",))
        assert repair_json(wrong, closed=False) is None


@each(
    "text",
    ["", "x", '"a"', '{"a', "{'a", "[1},2]", '{"a":[1},"b":2}', "[Nope]", "[TrueX]", "[" * 514 + "]" * 514],
)
def test_ambiguous_text_is_not_repaired(text: str) -> None:
    """Text that is ambiguous, or that is not an object or array, cannot be repaired."""
    assert repair_json(text) is None


def test_number_of_slips_is_limited() -> None:
    assert repair_json("[" + "'a'," * 5_000 + "1]") is not None
    assert repair_json("[" + "'a'," * 50_000 + "1]") is None


@given(st.text(alphabet="{}[],:\"'\\ \n\x00\ud800TrueNonaFls0"), st.booleans())
def test_any_text_is_repaired_or_yields_none(text: str, closed: bool) -> None:
    """Repairing arbitrary text yields None or a value that ends within the text."""
    got = repair_json(text, closed=closed)
    assert got is None or 0 < got.end <= len(text)


NAMES = [
    ("read_file", "read_file"),
    ("Read_File", "Read_File"),
    ("write", "write"),
    ("ns.go", "ns__go"),
    ("ls", "a__ls"),
    ("ls", "b__ls"),
    ("step2", "step2"),
    ("exec", "exec"),
    ("exec2", "exec2"),
]


@each(
    ("written", "fit"),
    [
        (" write\n", "write"),
        ("WRITE", "write"),
        ("functions.write", "write"),
        ("functions.write:0", "write"),
        ("write:12", "write"),
        ("tools/Write", "write"),
        ("ns.go", "ns__go"),
        (" read_file", "read_file"),
        ("READ_FILE", None),
        ("ls", None),
        ("writes", None),
        ("", None),
        (" " * 300 + "write", None),
        ("write<|channel|>commentary", "write"),
        ("functions.write <|constrain|>json", "write"),
        ("write<｜tool▁sep｜>", "write"),
        ("write[ARGS]", "write"),
        ("<|channel|>write", None),
        ("functionswrite5", "write"),
        ("functions.write5", "write"),
        ("functionswrite_12", "write"),
        ("functions", None),
        ("functions5", None),
        ("functionsstep2", "step2"),
        ("functionsstep2:0", "step2"),
        ("functionsstep25", "step2"),
        ("functionsexec2", None),  # This is either the second call to exec or a call to exec2.
        ("write5", None),
        ("writewrite", "write"),
        ("write:write", "write"),
        ("read_file_read_file", None),  # The names of two tools differ only in case.
        ("writewritewrite", "write"),
        ("write.write.write", "write"),
        ("writewrit", None),
        ("write_", None),
        ("step2step2step2", "step2"),
        ("write()", "write"),
        ('write({"a"', "write"),
        ("write<", "write"),
        ("functions::write", "write"),
        ("commentary to=functions.write", "write"),
        ("<|start|>assistant<|channel|>commentary to=functions.write <|constrain|>json", "write"),
        ("to=", None),
        ("default_api.write", "write"),
    ],
)
def test_misspelled_name_must_match_one_tool(written: str, fit: str | None) -> None:
    """A misspelled tool name is matched to a tool only if no other tool matches equally well."""
    assert fit_name(written, NAMES) == fit
