"""Sums in JSON: evaluated if they are the entire value, and never if a date may be meant."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsimlib.response.arithmetic import sum_at


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 3 * 60}", "180"),
        ("3*60\n}", "180"),
        (" 2 + 3 * 4,", "14"),
        (" 10 - 2 - 3]", "5"),
        (" 2 * 3 + 4 * 5 - 1}", "25"),
        (" 100 / 4}", "25"),
        (" 1 / 4}", "0.25"),
        (" 12 / 3 / 2}", "2"),
        (" 0.5 * 3}", "1.5"),
        (" -3 * -2}", "6"),
        (" 2026-05-01}", None),
        (" 5/1/2026}", None),
        (" 49+30}", None),
        (" 1 / 0}", None),
        (" 180}", None),
        (" 3 * x}", None),
        (" 3 * 60 seconds}", None),
        (" 3 ** 60}", None),
        (" (3 * 60)}", None),
        (" 3 * 60", None),
        (" 9999999999999999 * 2}", None),
        (" 1" + " * 2" * 20 + "}", None),
        (" 007 * 2}", None),
    ],
)
def test_sums(text: str, value: str | None) -> None:
    """A sum is evaluated if it is the entire value; unquoted dates, words and brackets are not."""
    got = sum_at(text, 0)
    assert (got and got[0]) == value
    assert got is None or text[got[1] :].strip(" \n")[0] in ",}]"


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from("+-*")), min_size=2, max_size=8))
def test_whole_numbers(parts: list[tuple[int, str]]) -> None:
    """Sums of integers stay integers, with the result that Python computes."""
    text = " ".join(f"{number} {operator}" for number, operator in parts)[:-2]
    got = sum_at(text + "}", 0)
    assert got is not None
    assert json.loads(got[0]) == eval(text)


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_quotients(a: int, b: int) -> None:
    """A quotient is the nearest float, or an integer if it is exact."""
    got = sum_at(f"{a} / {b}}}", 0)
    assert got is not None
    assert json.loads(got[0]) == (float(Fraction(a, b)) if a % b else a // b)
