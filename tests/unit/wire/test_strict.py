import pytest
from toolsimlib.errors import BadRequest
from toolsimlib.wire.strict import expect, kind_of, optional, required


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
    """Each JSON type has its name and article."""
    assert kind_of(value) == name


def test_expect_says_what_was_expected_and_got():
    """The message is OpenAI's own, with the exact param."""
    with pytest.raises(BadRequest) as caught:
        expect(3, str, "tools[0].name")
    assert caught.value.error.body() == {
        "message": "Invalid type for 'tools[0].name': expected a string, but got an integer instead.",
        "type": "invalid_request_error",
        "param": "tools[0].name",
        "code": "invalid_type",
    }
    assert caught.value.error.status == 400


def test_a_boolean_is_no_integer():
    """JSON tells true from 1, Python's isinstance does not."""
    assert expect(1, int, "n") == 1
    assert expect(True, bool, "stream") is True
    with pytest.raises(BadRequest):
        expect(True, int, "n")


def test_required():
    """Null counts as missing."""
    assert required({"a": "x"}, "a", str, "a") == "x"
    for fields in ({}, {"a": None}):
        with pytest.raises(BadRequest, match="Missing required parameter: 'p'") as caught:
            required(fields, "a", str, "p")
        assert caught.value.error.code == "missing_required_parameter"


def test_optional():
    """Absent and null are the same; a wrong type is not."""
    assert optional({}, "a", str, "a") is None
    assert optional({"a": None}, "a", str, "a") is None
    assert optional({"a": ""}, "a", str, "a") == ""
    with pytest.raises(BadRequest):
        optional({"a": 1}, "a", str, "a")
