"""Tests for the quick check of whether a schema is well-formed. The check accepts nearly all schemas that jsonschema
accepts, and no others.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema.validators import validator_for
from support.each import each
from toolsim.schema import SchemaError, compile_schema
from toolsim.schema.wellformed import _SHAPES, are_plainly_wellformed

DIALECTS = (
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)
KEYWORDS = [*sorted(_SHAPES.keys() - {"$schema"}), "x-unknown"]
WORDS = st.sampled_from(["string", "object", "null", "a", "b", "#", "a#b", "_x", ""])
PLAIN = st.none() | st.booleans() | st.sampled_from([0, 1, -1, 2.0, 0.5]) | WORDS | st.lists(WORDS, max_size=3)
SHAPES: st.SearchStrategy[Any] = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(WORDS, inner, max_size=2)
        | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=3)
    ),
    max_leaves=5,
)


def passes(schema: Any, dialect: str) -> bool:
    base = validator_for({"$schema": dialect})
    return base(base.META_SCHEMA).is_valid(schema)


@given(st.sampled_from(DIALECTS), st.dictionaries(st.sampled_from(KEYWORDS), SHAPES, max_size=3))
def test_malformed_schema_is_never_accepted(dialect: str, schema: dict[str, Any]) -> None:
    if are_plainly_wellformed([schema], dialect):
        assert passes(schema, dialect)


@each("dialect", DIALECTS)
@each("keyword", KEYWORDS)
def test_each_keyword_matches_its_meta_schema(dialect: str, keyword: str) -> None:
    """For each keyword, the quick check accepts the same values as the meta-schema, apart from a few unusual IDs and
    anchors.
    """
    doubts = {"$id": ("a#b",), "$anchor": ("_x",), "$dynamicAnchor": ("_x",)}
    values = [None, True, 0, -1, 1.0, 0.5, "", "string", "a#b", "_x", [], ["string"], ["a", "a"], ["a", 1], [{}]]
    values += [{}, {"a": {}}, {"a": 1}, {"a": []}, {"a": ["b"]}, {"a": True}, {"type": "nonsense"}, {"a": {"type": 1}}]
    is_known = keyword != "$recursiveAnchor" and not all(passes({keyword: value}, dialect) for value in values)
    for value in values:
        mine, theirs = are_plainly_wellformed([{keyword: value}], dialect), passes({keyword: value}, dialect)
        if value in doubts.get(keyword, ()) or not is_known:
            assert theirs or not mine
        else:
            assert mine == theirs, value


def test_other_dialects_are_rejected() -> None:
    """The quick check rejects all schemas in a dialect that it does not know."""
    assert not are_plainly_wellformed([{}], "http://json-schema.org/draft-04/schema#")
    assert not are_plainly_wellformed([[]], DIALECTS[-1])


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {f"a{i}": {"type": "string"} for i in range(2_000)}}, None),
        ({"properties": {f"a{i}": {"type": "string"} for i in range(4_000)}}, "too large"),
        (
            {"properties": {f"a{i}": {"type": "text"} for i in range(2_000)}},
            "too large for toolsim to locate the error",
        ),
        (
            {"x": {str(i): {} for i in range(99)}, "allOf": [{"$ref": f"#/x/{i}"} for i in range(99)]},
            "references point",
        ),
    ],
    ids=["sane", "too large", "malformed", "references to the unknown"],
)
def test_large_schemas_do_not_block(schema: dict[str, Any], why: str | None) -> None:
    """A schema of 60 kB or more is compiled or rejected in a fraction of a second."""
    schema = schema | {"title": str(time.monotonic())}
    assert json.dumps(schema)
    start = time.thread_time()
    if why is None:
        compile_schema(schema)
    else:
        with pytest.raises(SchemaError, match=why):
            compile_schema(schema)
    assert time.thread_time() - start < 0.2
