from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.response.sentinel import JsonBody


@each(
    ("text", "closes", "met", "at"),
    [
        ('"a":1}', False, "more", 6),
        ('"a":1}', True, "closed", 6),
        ('"a":{"b":[1]}} x', True, "closed", 14),
        ('"a":"}"} <t>', False, "tag", 9),
        ('"a":"<t>"', False, "more", 9),
        ('"a":1}} , {', False, "more", 11),
        ('"a" b', False, "slip", 3),
        ('"a"{', False, "slip", 3),
        ('"a":1 ~', False, "slip", 6),
        ('"a', False, "more", 2),
        ('"a\\', False, "more", 2),
        ("'a':'<t>\"'}", True, "closed", 11),
        ("'a\\'<t>'}", True, "closed", 9),
        ("'it's", False, "slip", 4),
        ('"it\'s"} <', False, "tag", 8),
        ("a'b", False, "slip", 1),
        ("'a\\", False, "more", 2),
        ("[T", True, "slip", 0),
        ('"a":1 [', True, "slip", 6),
        ('"a":1 [', False, "more", 7),
        ("}`", False, "more", 2),
        ("`", False, "slip", 0),
    ],
)
def test_reading_stops_at_the_documented_place(text: str, closes: bool, met: str, at: int) -> None:
    """For each example, parsing stops at the expected offset, whether the text arrives in one chunk or character by
    character.
    """
    assert JsonBody("{", "" if closes else "</t>").read(text, 0, len(text)) == (at, met)
    body = JsonBody("{", "" if closes else "</t>")
    pos, last = 0, "more"
    for stop in range(1, len(text) + 1):
        pos, last = body.read(text[:stop], pos, stop)
        if last != "more":
            break
    assert last == met
    assert pos == at or met == "slip"


@each(
    ("body", "text", "final", "met"),
    [
        ("}", "</t>", False, ("closed", 4)),
        ("", "</t>", False, ("closed", 4)),
        ("}", "<t>", False, ("closed", 0)),
        ("", "<t>", False, ("opened", 0)),
        ("}", "</function> x", False, ("closed", 11)),
        ("}", "</func", False, ("more", -1)),
        ("}", "</", True, ("closed", 2)),
        ("", "</", True, ("slip", 0)),
        ("", "</", False, ("more", 0)),
        ("}", "<b>", False, ("slip", 0)),
    ],
)
def test_tags_outside_strings_are_recognized(body: str, text: str, final: bool, met: tuple[str, int]) -> None:
    """A tag outside of strings is classified correctly: it closes the block, opens another block, is incomplete, or has
    no meaning in this call form.
    """
    read = JsonBody("{")
    read.read(body, 0, len(body))
    assert read.read_tag(text, 0, "<t>", "</t>", final=final) == met


@given(
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=4) | st.lists(st.none())), st.integers(1, 9)
)
def test_object_closes_at_its_last_bracket(value: dict[str, Any], size: int) -> None:
    """Any object ends at its last bracket, wherever its text is split."""
    text = json.dumps(value)
    body = JsonBody("{", "")
    pos, met = 1, "more"
    for stop in [*range(2, len(text), size), len(text)]:
        pos, met = body.read(text[:stop], pos, stop)
    assert (pos, met) == (len(text), "closed")
    assert body.is_complete
