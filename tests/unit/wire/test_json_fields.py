from __future__ import annotations

import pytest
from toolsim.core.errors import BadRequest
from toolsim.wire.json_fields import (
    count,
    expect,
    json_text,
    kind_of,
    mapping,
    mappings,
    optional,
    required,
    seconds,
    string,
)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "null"),
        (True, "a boolean"),
        (1, "an integer"),
        (1.5, "a decimal number"),
        ("", "a string"),
        ([], "an array"),
        ({}, "an object"),
    ],
)
def test_kind_of(value, name):
    assert kind_of(value) == name


def test_type_error_names_expectation_and_value():
    """The error for a value of the wrong type has OpenAI's wording and gives the exact path of the field."""
    with pytest.raises(BadRequest) as caught:
        expect(3, str, "tools[0].name")
    assert caught.value.error.body() == {
        "message": "Invalid type for 'tools[0].name': expected a string, but got an integer instead.",
        "type": "invalid_request_error",
        "param": "tools[0].name",
        "code": "invalid_type",
    }
    assert caught.value.error.status == 400


def test_boolean_is_not_an_integer():
    """A boolean is not accepted as an integer, although ``isinstance`` would accept it."""
    assert expect(1, int, "n") == 1
    assert expect(True, bool, "stream") is True
    with pytest.raises(BadRequest):
        expect(True, int, "n")


def test_required_field_must_be_present():
    """A required field that is null counts as missing, and the error gives its path."""
    assert required({"a": "x"}, "a", str) == "x"
    for fields in ({}, {"a": None}):
        for owner, path in (("", "a"), ("tools[0]", "tools[0].a")):
            with pytest.raises(BadRequest) as caught:
                required(fields, "a", str, owner)
            assert caught.value.error.message == f"Missing required parameter: '{path}'."
            assert caught.value.error.code == "missing_required_parameter"
    for value in (True, 1.0, "1"):
        with pytest.raises(BadRequest, match=r"'tools\[0\].a': expected an integer"):
            required({"a": value}, "a", int, "tools[0]")


def test_optional_field_can_be_absent():
    """An optional field can be absent or null. A value of the wrong type causes an error that gives the field's
    path.
    """
    assert optional({}, "a", str) is None
    assert optional({"a": None}, "a", str) is None
    assert optional({"a": ""}, "a", str) == ""
    for owner, path in (("", "a"), ("tools[0]", "tools[0].a")):
        for value, kind in ((1, str), (True, int), ([], dict)):
            with pytest.raises(BadRequest) as caught:
                optional({"a": value}, "a", kind, owner)
            assert caught.value.error.param == path


@pytest.mark.parametrize("value", [None, 5, 1.5, True, "x", [1, {"a": 1}], {"a": 1}])
def test_wrong_type_counts_as_absent(value: object) -> None:
    """A value of the wrong type is read as an empty value."""
    assert string(value) == (value if isinstance(value, str) else "")
    assert mapping(value) == (value if isinstance(value, dict) else {})
    assert mappings(value) == ([{"a": 1}] if isinstance(value, list) else [])
    assert count({"n": value}, "n") == (value if type(value) is int else 0)


def test_json_text_is_unchanged() -> None:
    """A value that is already JSON text is returned unchanged. An object is encoded as JSON text."""
    assert json_text('{"a": 1.0}') == '{"a": 1.0}'
    assert json_text({"a": "ä"}) == '{"a":"ä"}'
    assert [json_text(value) for value in (None, 5, [1])] == ["", "", ""]


def test_seconds() -> None:
    """Times are truncated to whole seconds. A value that is not a finite number counts as absent."""
    assert [seconds(value) for value in (5, 5.9, 10**30)] == [5, 5, 10**30]
    assert [seconds(value) for value in (None, "5", float("inf"), float("nan"), [5], True)] == [None] * 6
