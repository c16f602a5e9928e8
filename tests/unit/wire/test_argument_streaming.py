from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.wire.argument_streaming import EarlyArguments

OBJECTS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=4).map(json.dumps)


def passed_on(*pieces: str) -> list[str]:
    ahead = EarlyArguments()
    return [ahead.feed(piece) for piece in pieces]


@given(OBJECTS, st.integers(1, 9))
def test_pieces_are_passed_on_in_order(arguments: str, size: int) -> None:
    """Fragments of a call's arguments are passed on in order, unless the first fragment is already a complete
    object.
    """
    pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    seen = passed_on(*pieces)
    assert arguments.startswith("".join(seen))
    assert seen == pieces or len(pieces) == 1 or pieces[1].startswith(pieces[0])


@given(OBJECTS, st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_cumulative_pieces_are_a_prefix(arguments: str, ends: list[int]) -> None:
    """Even if each fragment repeats all earlier text, the text that is passed on is a prefix of the arguments."""
    pieces = [arguments[:end] for end in sorted({*ends, len(arguments)}) if end <= len(arguments)]
    assert arguments.startswith("".join(passed_on(*pieces)))


@pytest.mark.parametrize(
    "pieces",
    [
        ("{}", '{"a":1}'),
        ('{"a":1}', '{"a":12}'),
        (' {"a"', ":1}"),
        ('"{', '}"'),
        ("null",),
        ('{"a":"\ud83d', '\udc22"}'),
    ],
)
def test_uncertain_pieces_are_not_passed_on(pieces: tuple[str, ...]) -> None:
    """A fragment of the arguments is withheld if a later fragment might replace it, if it does not begin an object, or
    if it ends with half of a surrogate pair.
    """
    assert "".join(passed_on(*pieces)) == ""


def test_withheld_piece_ends_streaming() -> None:
    """After a fragment of the arguments has been withheld, all later fragments are withheld, so that the text has no
    gaps.
    """
    ahead = EarlyArguments()
    assert [ahead.feed(piece) for piece in ("", '{"', "", 'a":"', "\ud83d", "\udc22", '"}')] == [
        *("", '{"', "", 'a":"'),
        *("", "", ""),
    ]
    ahead = EarlyArguments()
    assert ahead.feed('{"') == '{"'
    ahead.stop()
    assert ahead.feed("a") == ""
