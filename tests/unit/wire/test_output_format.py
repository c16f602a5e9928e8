import pytest
from toolsimlib.conversation import ClientRequest
from toolsimlib.wire.output_format import nested_format, output_format

FLAT = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
NESTED = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}}
PLAIN = {"type": "json_object"}


@pytest.mark.parametrize(
    ("dialect", "body", "wanted"),
    [
        ("responses", {"text": {"format": FLAT}}, FLAT),
        ("responses", {"text": {"format": PLAIN}}, PLAIN),
        ("responses", {"text": {"format": {"type": "text"}}}, None),
        ("responses", {"text": {}}, None),
        ("responses", {"text": None, "response_format": PLAIN}, None),
        ("responses", {}, None),
        ("chat", {"response_format": NESTED}, FLAT),
        ("chat", {"response_format": PLAIN}, PLAIN),
        ("chat", {"response_format": {"type": "text"}}, None),
        ("chat", {"response_format": {"type": ["json_object"]}}, None),
        ("chat", {"response_format": "json"}, None),
        ("chat", {"text": {"format": FLAT}}, None),
    ],
)
def test_output_format(dialect, body, wanted):
    """Each dialect's demand for JSON is read into the flat shape; text is no demand."""
    assert output_format(ClientRequest(dialect, body, ())) == wanted


@pytest.mark.parametrize(("flat", "nested"), [(FLAT, NESTED), (PLAIN, PLAIN)])
def test_nested_format(flat, nested):
    """The flat shape becomes chat's."""
    assert nested_format(flat) == nested
