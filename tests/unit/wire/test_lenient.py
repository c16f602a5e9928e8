from __future__ import annotations

import pytest
from toolsimlib.wire.lenient import count, json_text, mapping, mappings, seconds, string


@pytest.mark.parametrize("value", [None, 5, 1.5, True, "x", [1, {"a": 1}], {"a": 1}])
def test_the_wrong_type_counts_as_absent(value: object) -> None:
    """Each reader returns a value of its own type unchanged, and an empty one for all others."""
    assert string(value) == (value if isinstance(value, str) else "")
    assert mapping(value) == (value if isinstance(value, dict) else {})
    assert mappings(value) == ([{"a": 1}] if isinstance(value, list) else [])
    assert count({"n": value}, "n") == (value if type(value) is int else 0)


def test_json_text() -> None:
    """JSON text is unchanged; an object that was not encoded is encoded."""
    assert json_text('{"a": 1.0}') == '{"a": 1.0}'
    assert json_text({"a": "ä"}) == '{"a":"ä"}'
    assert [json_text(value) for value in (None, 5, [1])] == ["", "", ""]


def test_seconds() -> None:
    """A time is cut to whole seconds; a value that is not a finite time counts as absent."""
    assert [seconds(value) for value in (5, 5.9, 10**30)] == [5, 5, 10**30]
    assert [seconds(value) for value in (None, "5", float("inf"), float("nan"), [5])] == [None] * 5
