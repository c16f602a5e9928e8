from __future__ import annotations

import pytest
from toolsimlib.wire.lenient import count, mapping, mappings, string


@pytest.mark.parametrize("value", [None, 5, 1.5, True, "x", [1, {"a": 1}], {"a": 1}])
def test_the_wrong_type_counts_as_absent(value: object) -> None:
    """Each reader returns a value of its own type as it is, and an empty one for all others."""
    assert string(value) == (value if isinstance(value, str) else "")
    assert mapping(value) == (value if isinstance(value, dict) else {})
    assert mappings(value) == ([{"a": 1}] if isinstance(value, list) else [])
    assert count({"n": value}, "n") == (value if isinstance(value, int) else 0)
