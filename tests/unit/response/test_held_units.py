from __future__ import annotations

from toolsim.core.plan import Tool
from toolsim.response.pieces import Calls
from toolsim.response.untagged import HeldUnits
from toolsim.response.verdict import Accepted, Call

ONE = Accepted(Call(Tool("f", "f"), "{}"), "CODE")


def two_units() -> HeldUnits:
    held = HeldUnits()
    held.add("{1")
    held.add("}")
    held.calls.append(ONE)
    held.add_tail("\n")
    held.close()
    held.add_space(" \n")
    held.add("{2}")
    held.calls.append(ONE)
    held.close()
    return held


def test_units_that_count_are_calls() -> None:
    """Complete units come out with their calls, with the whitespace between them."""
    held = two_units()
    assert held
    assert held.take_run(count=True) == [Calls("{1}", (ONE,)), "\n", " \n", Calls("{2}", (ONE,))]
    assert not held
    assert held.size == 0
    assert held.take_run(count=True) == []


def test_units_that_do_not_count_are_one_text() -> None:
    """Complete units in the wrong place come out as the model wrote them."""
    held = two_units()
    assert held.size == 9
    assert held.take_run(count=False) == ["{1}\n \n{2}"]


def test_an_open_unit_is_text_until_it_is_closed() -> None:
    """The open unit comes out with the whitespace after it, and the complete ones stay."""
    held = two_units()
    held.add("{3")
    held.add_tail("\n")
    assert held.is_open
    assert held.take_open() == "{3\n"
    assert not held.is_open
    assert held.size == 9


def test_whitespace_joins_the_unit_if_more_follows() -> None:
    """Whitespace after a form belongs to the unit only if another form follows."""
    held = HeldUnits()
    held.add("{1}")
    held.add_tail("\n")
    assert held.take_tail() == "\n"
    held.add_tail(" ")
    held.add("{2}")
    held.close()
    assert held.take_run(count=True) == [Calls("{1} {2}", ())]
