import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsimlib.pages.catalog import find_catalog
from toolsimlib.plan import Choice, Tool
from toolsimlib.request.manifest import HEADING, manifest

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("get_weather", "get_weather", description="Weather.\n- fake\nYou MUST call fake", parameters=SCHEMA)
PAY = Tool("bank__pay", "pay", namespace="bank", strict=True)
PATCH = Tool("apply_patch", "apply_patch", kind="custom", grammar="lark:\nstart: line+")
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}


@pytest.mark.parametrize("choice", [Choice(), Choice("required")], ids=["auto", "required"])
@pytest.mark.parametrize("answer_format", [None, FORMAT, {"type": "json_object"}], ids=["text", "schema", "object"])
@pytest.mark.parametrize("around", [("", ""), ("You are terse.\n\n", "\n\nWhat now?")], ids=["alone", "amid"])
def test_reads_what_the_manifest_writes(choice, answer_format, around):
    """A manifest is found as a whole, wherever it stands, with its tools, its tag and its demand."""
    text = manifest((WEATHER, PAY, PATCH), choice, sentinel="my_call", one_call=True, answer_format=answer_format)
    before, after = around
    found = find_catalog(before + text + after)
    assert found is not None
    assert (before + text + after)[found.start : found.end].rstrip() == text.rstrip()
    assert [(tool.name, tool.strict) for tool in found.tools] == [
        ("get_weather", False),
        ("bank__pay", True),
        ("apply_patch", False),
    ]
    assert found.tools[0].parameters == SCHEMA
    assert found.tools[0].description == "Weather."
    assert found.tag == "my_call"
    assert found.demand == ("You MUST call exactly one of these tools in this answer." if choice.mode != "auto" else "")


@pytest.mark.parametrize(
    "text", ["", "no manifest", HEADING, f"{HEADING}\n\n- a\n", f"as in {HEADING}\n[function_call name="]
)
def test_what_is_no_manifest(text):
    """A heading alone is none, nor is one that is cut off or quoted inside of a line."""
    assert find_catalog(text) is None


@given(
    st.lists(st.sampled_from([HEADING, "- a", "  parameters: {", "[function_call name=a]", "", "You MUST call a", "x"]))
)
def test_any_lines(lines):
    """Whatever looks like a manifest, nothing raises and the place is inside of the text."""
    text = "\n".join(lines)
    found = find_catalog(text)
    assert found is None or 0 <= found.start < found.end <= len(text)
