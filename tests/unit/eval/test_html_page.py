"""Tests for ``report.html``."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from toolsim.eval.html_page import MAX_FAILURES, render
from toolsim.recordings.web_page import MAX_TEXT

from .runs import RUNS, run

EVIL = "</pre><script>alert(1)</script><img src=http://evil.test/x>&amp;"
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """An HTML parser that fails if tags are not closed in the correct order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(runs: Any = RUNS, planned: int = 7) -> Page:
    read = Page(render(runs, planned=planned, stamp="20260207T123628Z", target="http://127.0.0.1:1/v1"))
    assert not read.open
    return read


def test_page_is_self_contained() -> None:
    """The HTML report does not load files or run scripts."""
    read = page()
    assert not {"script", "link", "img", "iframe", "object"} & set(read.tags)
    assert read.links == []
    assert not re.search(r"url\(|@import|https?://(?!127)", read.text)


def test_markup_from_a_model_is_escaped() -> None:
    """Markup in names, details, messages and answers is escaped, so the HTML report shows it as text."""
    evil = run(EVIL, ok=False, detail=EVIL, model=EVIL, suite=EVIL, setting=EVIL)
    step = {**evil.steps[0], "wrote": EVIL, "shown": [[EVIL, EVIL]], "error": {"status": 500, "message": EVIL}}
    read = page([replace(evil, steps=(step,))], planned=1)
    assert not {"script", "img"} & set(read.tags)
    assert read.text.count(EVIL) >= 6


def test_each_failure_has_an_entry() -> None:
    """The HTML report has an entry for each failed run, with the prompt and the answer, even if the exchange was not
    recorded.
    """
    read = page()
    assert read.tags.count("details") >= 3
    for words in ("shown · system", "# CLIENT TOOL CATALOG", "the model wrote", "<tool_call>{}</tool_call>",
                  "the client received these calls", "state_get({})", "no_call", "http_error"):  # fmt: skip
        assert words in read.text
    plain = replace(RUNS[3], steps=({"messages": [{"role": "user", "content": "Hello"}], "tools": ["a"],
                                     "error": {"status": None, "message": "refused"}},))  # fmt: skip
    assert "Tools on offer: a" in page([plain], planned=1).text


def test_figures_match_the_report() -> None:
    """The HTML report shows the overall rate. If the evaluation was interrupted, the report also shows a warning."""
    text = page(planned=9).text
    assert "57.1 %" in text
    assert "4 of 7" in text
    assert "Interrupted: 7 of 9 runs are complete." in text
    assert "Interrupted" not in page().text


def test_report_without_runs_is_a_page() -> None:
    """If an evaluation was interrupted before its first run, its HTML report is still valid."""
    assert "0 of 3" in page([], planned=3).text


def test_page_without_failures() -> None:
    """If all runs have passed, the HTML report shows "None." instead of a list of failures."""
    assert "None." in page([run()], planned=1).text


def test_long_content_is_cut() -> None:
    """If there are thousands of failures or very long texts, the HTML report is shortened and states how much is
    omitted.
    """
    wrong = run(ok=False)
    endless = replace(wrong, steps=({**wrong.steps[0], "wrote": "x" * 10 * MAX_TEXT},))
    text = page([endless, *[replace(wrong, trial=number) for number in range(1, MAX_FAILURES + 5)]], planned=205).text
    assert "And 5 more" in text
    assert f"{9 * MAX_TEXT} more characters" in text
