"""Text with malformed markers: a marker of a call form is doubled, dropped, halved or misspelled, or whitespace
differs.

``tests/cases/marker_forms.json`` contains the forms. Each text has only one change. Values and names, and the
whitespace next to them, are unchanged.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from toolsim.parsing import Parsed, parse

_TABLE = json.loads((Path(__file__).parents[1] / "cases" / "marker_forms.json").read_text(encoding="utf-8"))
TOOLS: list[dict[str, Any]] = _TABLE["tools"]
FIRST = ["write", {"path": "a.txt", "lines": 3}]
SECOND = ["write", {"path": "b.txt", "lines": 4}]

DOUBLED_CLOSING, WHITESPACE = "closing marker doubled", "whitespace moved"
CHANGES = (
    *(DOUBLED_CLOSING, "opening marker doubled", "closing marker dropped", "opening marker dropped"),
    *("closing marker halved", "opening marker halved", "closing marker misspelled", "opening marker misspelled"),
    WHITESPACE,
)
"""All types of changes, in the order in which the tables list them."""

Outcome = Literal["right", "leftover", "part", "text", "other"]
"""Outcomes of parsing a malformed text.

``right``: all calls and nothing else. ``leftover``: all calls, and some markup as text. ``part``: only some of several
calls. ``text``: no calls, and the unchanged text. ``other``: any other result.
"""


@dataclass(frozen=True)
class Form:
    """A documented call form: its text with one call, its text with two calls, and its markers."""

    form: str
    families: list[str]
    body: str
    opening: list[str]
    closing: list[str]
    text: str
    two: str
    cases: list[str] = field(default_factory=list)
    """Prefixes of the names of this form's cases in ``call_forms.json``."""

    @property
    def markers(self) -> re.Pattern[str]:
        """A pattern for the form's markers. Longer markers come first, because some begin with another marker."""
        found = sorted([*self.opening, *self.closing], key=len, reverse=True)
        return re.compile("|".join(map(re.escape, found)) or r"(?!)")


@dataclass(frozen=True)
class Malformed:
    """A text with one change, and the calls that should be parsed from it."""

    form: str
    change: str
    text: str
    calls: tuple[Any, ...]
    place: str

    @property
    def name(self) -> str:
        """The ID of this text."""
        return f"{self.form} / {len(self.calls)} / {self.change} / {self.place}"


FORMS: list[Form] = [Form(**row) for row in _TABLE["forms"]]


def malformed(form: Form) -> Iterator[Malformed]:
    """Yield all malformed texts of one form, without duplicates."""
    for text, calls in ((form.text, (FIRST,)), (form.two, (FIRST, SECOND))):
        seen = {text}
        for change, place, changed in _changes(form, text):
            if changed not in seen:
                seen.add(changed)
                yield Malformed(form.form, change, changed, calls, place)


def _changes(form: Form, text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the type and the location of each change, and the changed text."""
    for found in form.markers.finditer(text):
        marker, before, after = found[0], text[: found.start()], text[found.end() :]
        side = "closing" if marker in form.closing else "opening"
        half = len(marker) // 2
        place = f"{marker} at {found.start()}"
        for how, kind, changed in (
            ("doubled", "at once", marker * 2),
            ("doubled", "on another line", f"{marker}\n{marker}"),
            ("dropped", "", ""),
            ("halved", "first half", marker[:half]),
            ("halved", "second half", marker[half:]),
            ("misspelled", "a letter less", marker[:half] + marker[half + 1 :]),
            ("misspelled", "a letter twice", marker[:half] + marker[half - 1 :]),
            ("misspelled", "without its end", marker[:-1]),
        ):
            yield f"{side} marker {how}", f"{place} {kind}".rstrip(), before + changed + after
    for start, end in _gaps(form, text):
        for space in ("", " ", "\n", "\n\n", " \n "):
            yield WHITESPACE, f"{space!r} at {start}", text[:start] + space + text[end:]


def _gaps(form: Form, text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each gap in which whitespace is not part of a value or a name."""
    spans = [(0, 0), *((found.start(), found.end()) for found in form.markers.finditer(text)), (len(text), len(text))]
    for (_, start), (end, _) in pairwise(spans):
        between = text[start:end]
        if not between.strip():
            yield start, end
        elif form.body not in ("pairs", "fence"):  # In a code fence, the line breaks are part of the Markdown syntax.
            left, right = len(between) - len(between.lstrip()), len(between.rstrip())
            yield start, start + left
            yield start + right, end


def outcome(case: Malformed, parsed: Parsed) -> Outcome:
    """Return the outcome of parsing a malformed text."""
    calls = [[call.name, json.loads(call.arguments)] for call in parsed.calls]
    if calls == list(case.calls):
        return "leftover" if parsed.prose.strip() else "right"
    if not calls:
        # Text counts as unchanged only if every byte is the same.
        return "text" if parsed.prose == case.text else "other"
    return "part" if len(calls) == 1 and calls[0] in case.calls and len(case.calls) > 1 else "other"


def rates(form: Form) -> dict[str, Counter[str]]:
    """Return the number of texts with each outcome, for each kind of change in one form."""
    found: dict[str, Counter[str]] = {}
    for case in malformed(form):
        found.setdefault(case.change, Counter())[outcome(case, parse(case.text, TOOLS))] += 1
    return found


def is_read(form: Form) -> bool:
    """Return whether toolsim recognizes the form's unchanged texts."""
    cases = ((form.text, [FIRST]), (form.two, [FIRST, SECOND]))
    return all(
        [[call.name, json.loads(call.arguments)] for call in parse(text, TOOLS).calls] == calls
        and not parse(text, TOOLS).prose.strip()
        for text, calls in cases
    )
