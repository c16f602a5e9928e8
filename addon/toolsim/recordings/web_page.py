"""Renders parts of a report's web page, which is one file with no scripts and no network access.

All text from models and servers is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

MAX_TEXT = 12_000
"""Maximum number of characters in one quoted text: more than anyone would read, but small enough for a browser."""


def document(title: str, body: Iterable[str]) -> str:
    """Return the complete HTML document."""
    style = files("toolsim.recordings").joinpath("report.css").read_text("utf-8")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def tile(name: str, value: str, detail: str) -> str:
    """Return a box that shows a value with its name and a line of details."""
    return f"<div><span>{escape(name)}</span><strong>{escape(value)}</strong><small>{escape(detail)}</small></div>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int) -> str:
    """Return a table. The column with the index ``numbers`` and all columns to the right of it contain numbers."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=number' if place >= numbers else ''}>{escape(cell)}</{tag}>"
            for place, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{line("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def quoted(who: str, text: str, kind: str = "") -> str:
    """Return a quotation with the name of its author. Long text without a ``kind`` (a CSS class) is collapsed."""
    long = len(text) > 900 and not kind
    body = f"<pre>{escape(cut(text, MAX_TEXT))}</pre>"
    if long:
        summary = f"<summary>{escape(who)} <small>{len(text):,} characters</small></summary>"
        return f'<details class="said">{summary}{body}</details>'
    return f'<div class="said {kind}"><span>{escape(who)}</span>{body}</div>'


def cut(text: str, limit: int) -> str:
    """Return the text. If it exceeds the limit, return only its beginning, and the number of omitted characters."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"
