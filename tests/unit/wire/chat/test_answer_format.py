from support.each import each
from toolsim.wire.chat.request import flat_format, nested_format

FLAT = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
NESTED = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}}
PLAIN = {"type": "json_object"}


@each(
    ("wanted", "flat"),
    [
        (FLAT, FLAT),
        (NESTED, FLAT),
        (PLAIN, PLAIN),
        ({"type": "text"}, None),
        ({"type": ["json_object"]}, None),
        ({}, None),
        ("json", None),
        (None, None),
    ],
)
def test_flat_format(wanted, flat):
    """A JSON format is converted to the flat form from either the flat or the nested form. For a text format, the
    result is None.
    """
    assert flat_format(wanted) == flat


@each(("flat", "nested"), [(FLAT, NESTED), (PLAIN, PLAIN)])
def test_nested_format(flat, nested):
    """The flat form of an answer format is converted to the nested form of chat completions."""
    assert nested_format(flat) == nested
