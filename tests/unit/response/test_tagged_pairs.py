from __future__ import annotations

import pytest
from support.each import each
from support.growth import LINEAR, growth
from toolsim.response.parsed_call import Elements, Json, ParsedCall
from toolsim.response.tagged_pairs import NAME, pairs_reader

read = pairs_reader(rf"<f=({NAME})>", "<p=([^<>]+)>", "<p=?", "</p>", "</f>")


def pairs_of(call: ParsedCall) -> list[tuple[str, str]] | None:
    """Return the key-value pairs of a call, or None if the call is broken."""
    return None if call.broken else list(call.given.items if isinstance(call.given, Elements) else ())


@each(
    ("body", "calls"),
    [
        ("<f=a></f>", [("a", [])]),
        ("<f=a><p=k>v</p></f>", [("a", [("k", "v")])]),
        ("<f=a>\n<p=k>\nv\n</p>\n<p=l>w</p>\n</f>\n<f=b></f>", [("a", [("k", "\nv\n"), ("l", "w")]), ("b", [])]),
        ("<f=a><p=k>v</p> w</p></f>", [("a", [("k", "v</p> w")])]),
        ("<f=a><p=k>x <p=y>z</p> w</p></f>", [("a", [("k", "x <p=y>z</p> w")])]),
        ("<f=a><p=k>a & b</p></f>", [("a", [("k", "a &amp; b")])]),
        ("<f=a><p=k><![CDATA[a & b]]></p></f>", [("a", [("k", "<![CDATA[a & b]]>")])]),
        ("<f=a><p=k>v</p>", [("a", [("k", "v")])]),
        ("<f=a>x</f>", [("a", None)]),
        ("<f=a><p=k>v</p>x</f>", [("a", None)]),
        ("<f=a></f> x", [("a", []), (None, None)]),
        ("x", [(None, None)]),
    ],
)
def test_values_end_at_the_first_fitting_mark(
    body: str, calls: list[tuple[str | None, list[tuple[str, str]] | None]]
) -> None:
    """A value ends at the first closing marker that is followed by valid text of the same call form. A call that cannot
    be parsed is broken.
    """
    got = read(body)
    assert [(call.name, pairs_of(call)) for call in got] == calls
    assert all(call.broken or call.is_clean for call in got)


@pytest.mark.parametrize(
    ("body", "pairs"),
    [
        ("<f=a><p=k>v<p=l>w</p></f>", [("k", "v"), ("l", "w")]),
        ("<f=a><p=k>v</f>", [("k", "v")]),
        ("<f=a><p=k>v</q></f>", [("k", "v")]),
        ("<f=a><p=k>v", None),
        ("<f=a><p=k>\nv\n</f>", [("k", "\nv\n")]),
        ("<f=a><p=k>\nv\n</q>\n</f>", [("k", "\nv\n")]),
        ("<f=a><p=k>v < <b>w</b><p=l>x</p></f>", [("k", "v < <b>w</b>"), ("l", "x")]),
        ("<f=a><p=k><>v</></f>", [("k", "<>v</>")]),
        ("<f=a><p=k><b>v</></f>", [("k", "<b>v")]),
    ],
)
def test_unclosed_value_ends_at_the_next_pair(body: str, pairs: list[tuple[str, str]] | None) -> None:
    """A value without a closing marker ends at the next pair or at the end of the call. If the call has no end either,
    it is broken.
    """
    (call,) = read(body)
    assert pairs_of(call) == pairs
    assert call.broken or call.codes == ("MISSING_CLOSE",)


def test_object_in_place_of_pairs_is_unchanged() -> None:
    """If a call contains a JSON object in place of key-value pairs, the object is used as the arguments without any
    change.
    """
    (call,) = read('<f=a> {"k": 1.0} </f>')
    assert isinstance(call.given, Json)
    assert call.given.source == ' {"k": 1.0} '


def test_time_is_linear() -> None:
    """Texts with many pairs, or with many markers that do not form pairs, are parsed in linear time."""
    for scrap in ("<p=k>v</p>", "<p=k>v", "<p=k>v</p>x", "<p=k>"):
        assert growth(lambda count, scrap=scrap: read("<f=a>" + scrap * count + "</p></f>"), 2_000) < LINEAR
