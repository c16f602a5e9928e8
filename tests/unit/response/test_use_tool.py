from __future__ import annotations

import json
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st
from support.answers import tool
from toolsim.core.plan import Tool
from toolsim.response.parsed_call import use_tool_text


def test_parameters_have_canonical_order() -> None:
    """In a ``<use_tool>`` block, parameters are in the order of the schema, followed by additional parameters. Strings
    are escaped, and all other values are written as JSON.
    """
    text = use_tool_text(tool("f", b="array", a="string"), '{"x":1.5,"a":"<1 & 2>","b":["ä",true]}')
    assert text == (
        '<use_tool>\n  <name>f</name>\n  <b>["ä",true]</b>\n  <a>&lt;1 &amp; 2&gt;</a>\n  <x>1.5</x>\n</use_tool>'
    )


def test_custom_tool_has_one_parameter() -> None:
    """The raw input of a custom tool is the only parameter in its ``<use_tool>`` block."""
    assert use_tool_text(Tool("p", "p", "custom"), "a <b>") == (
        "<use_tool>\n  <name>p</name>\n  <input>a &lt;b&gt;</input>\n</use_tool>"
    )


def test_huge_integers_keep_their_text() -> None:
    """Numbers in parameters keep their source text, even if they exceed Python's range. If the arguments are not an
    object, there are no parameters.
    """
    for number in ("9" * 5000, "1e400", "1.0"):
        assert f"<n>{number}</n>" in use_tool_text(tool("f"), f'{{"n":{number}}}')
    assert use_tool_text(tool("f"), "[1]") == "<use_tool>\n  <name>f</name>\n</use_tool>"


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.text(alphabet="a<>&\"'é🐢\n", min_size=1)))
def test_xml_parser_reads_the_values(values: dict[str, str]) -> None:
    """An independent XML parser reads each value as the original string."""

    root = ET.fromstring(use_tool_text(tool("f", a="string"), json.dumps(values)))
    assert root.findtext("name") == "f"
    assert {child.tag: child.text for child in root if child.tag != "name"} == values
