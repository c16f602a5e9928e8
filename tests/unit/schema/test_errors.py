from __future__ import annotations

from toolsimlib.schema import compile_schema
from toolsimlib.schema.errors import MAX_MESSAGE


def test_mismatch_says_where_and_why() -> None:
    """A message begins with the path and keeps the reason, however long the value; it can always be encoded."""
    validator = compile_schema({"properties": {"a": {"items": {"type": "integer"}}}})
    mismatch = validator.check({"a": [1, "x"]})
    assert mismatch == "$.a[1]: 'x' is not of type 'integer'"
    long = validator.check({"a": [1, "x" * 10_000]})
    assert long is not None
    assert len(long) == MAX_MESSAGE
    assert long.startswith("$.a[1]: 'xx")
    assert long.endswith("is not of type 'integer'")
    odd = compile_schema({"additionalProperties": {"type": "integer"}}).check({"\ud800": "\udfff"})
    assert odd is not None
    odd.encode()
