"""Writes the files of a report: ``report.json``, ``report.md`` and ``report.html``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from toolsim.eval import html_page, markdown
from toolsim.eval.case import Run
from toolsim.eval.journal import Journal
from toolsim.eval.summary import summarise

REPORT = "report.json"


def write(
    log: Journal, runs: Sequence[Run], *, planned: int, target: str, settings: dict[str, Any], note: str = ""
) -> None:
    """Write the files to the journal's folder, whose name is the report's time stamp.

    ``planned`` is the planned number of runs, ``target`` describes the server, and ``note`` is a text by the author.
    """
    stamp = log.folder.name
    figures = summarise(runs, planned=planned, stamp=stamp, settings=settings)
    log.write(REPORT, as_text(figures))
    log.write("report.md", markdown.render(runs, planned=planned, stamp=stamp, target=target, note=note))
    log.write("report.html", html_page.render(runs, planned=planned, stamp=stamp, target=target))


def as_text(data: dict[str, Any]) -> str:
    """Return data as JSON text with the formatting of report files."""
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"
