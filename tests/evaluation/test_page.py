"""Tests for an evaluation's ``report.html`` in a real browser."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.chromium import CHROMIUM, Chromium
from toolsim.eval.case import Cell, Label, MethodName, Run
from toolsim.eval.html_page import render

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]

PICTURES = Path(__file__).parent / "screenshots"
LONG = "meta-llama/llama-3.3-70b-instruct-with-a-name-that-has-no-end:free"
STEP = {
    "messages": [{"role": "user", "content": "Hello"}],
    "shown": [["system", "catalog " * 300], ["user", "x" * 400]],
    "wrote": '<tool_call>{"name": "state_get"',
    "answer": {"text": "", "calls": [{"name": "state_get", "arguments": "{}"}]},
    "ms": 12.0,
}


def run(number: int, method: MethodName, label: Label | None) -> Run:
    cell = Cell(LONG, "default", method, "chat")
    return Run("scenarios", f"scenario_{number % 7}", "tools", number, cell, label is None, label, "detail " * 60,
               40.0 * 1.4**number, 2, 1000, 50, 0, 0, number % 2, (STEP,))  # fmt: skip


RUNS = [
    run(number, method, "no_call" if number % 3 == place else None)
    for number in range(21)
    for place, method in enumerate(("toolsim", "native", "prompt"))
]

# Returns the labels and figures that are outside the image of their chart.
OUTSIDE = """[...document.querySelectorAll('svg text')].filter(text => {
  const box = text.getBBox(), whole = text.ownerSVGElement.viewBox.baseVal
  return box.x < 0 || box.x + box.width > whole.width
}).map(text => text.textContent)"""


@pytest.mark.parametrize("width", [1280, 700])
def test_page_fits_the_window_and_unfolds(width: int, tmp_path: Path) -> None:
    """The report page fits the window, a failure can be unfolded, all chart labels are visible, and no resource is
    fetched.
    """
    page = tmp_path / "report.html"
    page.write_text(render(RUNS, planned=len(RUNS), stamp="20260207T123628Z", target="http://127.0.0.1:1/v1"))
    with Chromium(width=width) as browser:
        browser.open(page.as_uri())
        browser.wait_for("document.readyState === 'complete'")
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("performance.getEntriesByType('resource').length") == 0
        assert browser.run("document.querySelectorAll('svg').length") == 2
        assert browser.run(OUTSIDE) == []
        browser.run("document.querySelector('.failures details').open = true")
        text = browser.run("document.querySelector('.failures details').innerText")
        assert "the model wrote" in text.lower()
        assert "state_get({})" in text
        assert browser.run("document.documentElement.scrollWidth") <= width


def test_screenshot_of_a_report(tmp_path: Path) -> None:
    """Take a screenshot of a report.

    The report is read from the folder in TOOLSIM_SCREENSHOTS or, if the variable is not set, created from ``RUNS``.
    """
    folder = os.environ.get("TOOLSIM_SCREENSHOTS", "")
    page = Path(folder) / "report.html" if folder else tmp_path / "report.html"
    if not folder:
        page.write_text(render(RUNS, planned=len(RUNS), stamp="20260207T123628Z", target="http://127.0.0.1:1/v1"))
    path = (PICTURES if folder else tmp_path) / "report.png"
    with Chromium(width=1000) as browser:
        browser.open(page.absolute().as_uri())
        browser.wait_for("document.readyState === 'complete'")
        last = "[...document.querySelectorAll('section')].find(s => s.querySelector('.plot:last-child svg .rail'))"
        height = browser.run(f"{last}.getBoundingClientRect().bottom")
        browser.screenshot(path, width=1000, height=round(height) + 12)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < 200_000
