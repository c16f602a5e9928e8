from __future__ import annotations

from toolsimlib.response.gap import Gap


def test_whitespace_is_held_back() -> None:
    """Whitespace is held back and released once, in order; other text is not accepted."""
    gap = Gap()
    assert not gap
    assert gap.hold(" \n")
    assert gap.hold("\t")
    assert not gap.hold("x")
    assert gap
    assert gap.take() == " \n\t"
    assert not gap
    assert gap.take() == ""


def test_endless_whitespace_is_not_held_back() -> None:
    """Beyond the bound, whitespace is no longer a gap."""
    gap = Gap()
    assert gap.hold(" " * 65_536)
    assert not gap.hold(" ")
    assert len(gap.take()) == 65_536
    assert gap.hold(" ")


def test_a_mark_goes_with_the_whitespace() -> None:
    """The mark of a fence around a block is held back like whitespace."""
    gap = Gap()
    gap.hold_mark("```xml\n")
    assert gap.hold("\n")
    assert gap.take() == "```xml\n\n"
