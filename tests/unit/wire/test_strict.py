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
    """JSON distinguishes true from 1, Python's isinstance does not."""
    assert expect(1, int, "n") == 1
    assert expect(True, bool, "stream") is True
    with pytest.raises(BadRequest):
        expect(True, int, "n")


def test_required():
    """Null counts as missing; an error names the field by its path."""
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


def test_optional():
    """Absent and null are the same; a wrong type is not, and the error names the field by its path."""
    assert optional({}, "a", str) is None
    assert optional({"a": None}, "a", str) is None
    assert optional({"a": ""}, "a", str) == ""
    for owner, path in (("", "a"), ("tools[0]", "tools[0].a")):
        for value, kind in ((1, str), (True, int), ([], dict)):
            with pytest.raises(BadRequest) as caught:
                optional({"a": value}, "a", kind, owner)
            assert caught.value.error.param == path
