from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import tool
from support.each import each
from toolsim.response.call_keys import ARGUMENTS_KEYS
from toolsim.response.client_calls import Preview

TOOLS = [tool("f", a="string"), tool("s", True, a="string")]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["🐢", "\\", '"', "}{", "\ud83d"]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=4)


def preview(body: str, size: int = 1) -> tuple[Preview, str]:
    reader = Preview(TOOLS)
    return reader, "".join(reader.feed(body[i : i + size]) for i in range(0, len(body), size))


@given(OBJECTS, st.integers(1, 12), st.booleans(), st.booleans(), st.sampled_from(["", "[", "\n [ "]))
def test_previews_are_verbatim(value: dict[str, object], size: int, quoted: bool, ascii_only: bool, head: str) -> None:
    """The preview of a call emits the arguments in fragments before the call is complete. Concatenated, the fragments
    equal the arguments, for any object, encoding, split and enclosing list.
    """
    arguments = json.dumps(value, ensure_ascii=ascii_only)
    inner = json.dumps(arguments, ensure_ascii=ascii_only) if quoted else arguments
    after = ', {"name": "f", "arguments": {"z": 1}}]' if head else ""
    reader, seen = preview(f'{head}{{"name": "f", "arguments": {inner}}}{after}', size)
    assert seen == arguments
    assert reader.tool is not None
    assert reader.rest("f", arguments) == ""
    assert reader.rest("g", arguments) is None
    assert reader.rest("f", "{}" if arguments != "{}" else "[]") is None


@pytest.mark.parametrize("key", ARGUMENTS_KEYS)
@pytest.mark.parametrize("head", ['{"name": "f"', '{"tool": "f"', '{"function": {"name": "f"'])
def test_every_key_spelling_is_accepted(head: str, key: str) -> None:
    """The preview of a call accepts all spellings of the call's keys. With repairs turned off, it accepts only
    toolsim's own keys.
    """
    body = f'{head}, "{key}": {{"a": "x"}}}}'
    reader, seen = preview(body)
    assert (seen, reader.tool) == ('{"a": "x"}', TOOLS[0])
    is_ours = head.startswith('{"name"') and key == "arguments"
    assert bool(Preview(TOOLS, repair=False).feed(body)) is is_ours


@each(
    "body",
    [
        '{"arguments":{"a":1},"name":"f"}',
        '{"name":"unknown","arguments":{}}',
        '{"name":"s","arguments":{}}',
        '{"name":"f","arguments":"text"}',
        '{"name":"f","arguments":"  "}',
        '{"name":"f","arguments":null}',
        '[[{"name":"f","arguments":{}}]]',
        '{"name":"f' + "x" * 600,
        '{"name":"f","arguments":"' + " " * 600 + '{\\"a\\":1}"}',
        "<name>f</name>",
    ],
)
def test_other_calls_have_no_preview(body: str) -> None:
    """A call is not previewed if it has an unexpected structure, if its tool is unknown or strict, or if its arguments
    are not an object.
    """
    reader, seen = preview(body)
    assert seen == ""
    assert reader.tool is None


@pytest.mark.parametrize("tail", ["\\q", "\n", "\\u12x"])
def test_invalid_escape_stops_the_preview(tail: str) -> None:
    """An invalid escape in a string stops the preview of a call. The text that was emitted before the escape is a
    prefix of the arguments.
    """
    reader, seen = preview(f'{{"name":"f","arguments":"{{\\"a\\":{tail} more')
    assert seen == '{"a":'
    assert reader.feed("more") == ""
    assert reader.rest("f", '{"a":1}') == "1}"


def test_abandoned_preview_emits_no_more_text() -> None:
    reader, _ = preview('{"name":"f","arguments":{"a":1')
    reader.give_up()
    assert reader.tool is None
    assert reader.feed("2}") == ""


@given(st.text(alphabet='{}[]",:\\ nameargumentsf1u\ud83d'), st.integers(1, 5))
def test_any_text(text: str, size: int) -> None:
    """Previewing arbitrary text raises no exception, wherever the text is split."""
    preview(text, size)
    preview('{"name":"f","arguments":"{' + text, size)
    preview('{"name":"f","arguments":{' + text, size)
