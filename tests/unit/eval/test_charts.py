"""Tests for the charts in an evaluation report."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.eval.charts import WIDTH, duration, latencies, rates
from toolsim.eval.summary import Rate


def numbers(svg: str, attribute: str) -> list[float]:
    return [float(value) for value in re.findall(rf' {attribute}="([-0-9.]+)"', svg)]


def test_bar_length_is_proportional_to_the_rate() -> None:
    """The length of a bar in the chart is proportional to the rate that is printed next to it."""
    svg = rates([("happy_path", {"toolsim": Rate(4, 2), "native": Rate(4, 0)})], {"toolsim": 0, "native": 1})
    tree = ElementTree.fromstring(svg)
    bars = {bar.get("class"): float(bar.get("width", "")) for bar in tree.iter("rect")}
    assert bars["method0"] == bars["track"] / 2
    assert bars["method1"] == 0
    assert "50 %  (2/4)" in svg


@given(st.lists(st.lists(st.floats(0.01, 1e7), max_size=40), min_size=1, max_size=4))
def test_every_run_is_a_dot_inside_the_plot(strips: list[list[float]]) -> None:
    """For any latencies, the chart is well-formed XML, and all dots are inside it."""
    svg = latencies([(f"method {place}", place, times) for place, times in enumerate(strips)])
    if any(strips):
        ElementTree.fromstring(svg)
        assert all(0 <= x <= WIDTH for x in numbers(svg, "cx"))
        assert len(numbers(svg, "cx")) <= sum(map(len, strips))


def test_without_times_there_is_no_plot() -> None:
    """If no request was answered, there is no latency chart."""
    assert latencies([("toolsim", 0, [])]) == ""


def test_names_are_escaped() -> None:
    """The name of a model is escaped in the chart. If the name is shortened, the tooltip contains the full name."""
    name = "<b>&\"' a very long name of a model indeed"
    tree = ElementTree.fromstring(rates([(name, {name: Rate(1, 1)})], {name: 0}))
    assert any(name in (title.text or "") for title in tree.iter("title"))


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (340.4, "340 ms"),
        (1000, "1 s"),
        (1540, "1.5 s"),
        (12_000, "12 s"),
        (100_000, "100 s"),
        (150_000, "2.5 min"),
    ],
)
def test_durations_have_readable_units(ms: float, text: str) -> None:
    """Durations are shown in milliseconds, seconds or minutes, depending on their length."""
    assert duration(ms) == text
