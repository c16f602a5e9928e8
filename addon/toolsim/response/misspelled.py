"""Markers with a single misspelling, as written by quantized models or under a tight token limit.

    <tool_call>   <toolcall>  <tooll_call>      one character missing or doubled
                  <tool_call                    no end
                  <tool  _call>                 only one half
    < tool_call>  </tool_call >  </tool_call/>  a space next to a bracket, or a slash

Misspelled markers are never searched for in prose. They are accepted only where the correct marker would be allowed,
and only in two cases: if the block that they open or close is otherwise a valid call (``sentinel``), or if the body of
a call cannot be parsed without correcting them (``corrected``).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import lru_cache

_MIN_LENGTH = 3
_JOINTS = (" ", ":", ": ", " =", "= ", " = ", "s=")
"""Text that models write instead of the ``=`` in a tag such as ``<parameter=city>``."""

_ANY = re.compile("")


@lru_cache(maxsize=512)
def misspelled(marker: str) -> frozenset[str]:
    """Return all misspellings of a marker that differ from it in one place."""
    size = len(marker)
    less = {marker[:at] + marker[at + 1 :] for at in range(1, size)}
    twice = {marker[: at + 1] + marker[at:] for at in range(size)}
    spaced: set[str] = set()
    if marker[0] == "<" and "|" not in marker:
        name = 2 if marker[1] == "/" else 1
        spaced = {f"{marker[:name]} {marker[name:]}"}
        spaced |= {f"{marker[:-1]} >"} if marker[-1] == ">" else set()
        spaced |= {f"{marker[:-1]}/>", f"{marker[:-1]} />"} if name == 2 else set()
    halves = {half for at in range(size // 2, size) for half in (marker[:at], marker[size - at :])}
    return frozenset(found for found in less | twice | halves | spaced if len(found) >= _MIN_LENGTH) - {marker}


class Spellings:
    """The misspellings of several markers, for lookup at a position in the text or at its end.

    If several markers have the same misspelling, it is read as the first of these markers. A misspelling is ignored if
    it is the correct spelling of another marker or of one of the ``others``, or if it does not match ``hint``.
    """

    def __init__(self, markers: Iterable[str], others: Iterable[str] = (), *, hint: re.Pattern[str] = _ANY) -> None:
        exact = [*markers]
        self._of: dict[str, str] = {}
        for marker in exact:
            for spelling in misspelled(marker):
                if hint.match(spelling):
                    self._of.setdefault(spelling, marker)
        for marker in (*exact, *others):
            self._of.pop(marker, None)
        self._sorted = sorted(self._of)
        self.longest = max(map(len, self._of), default=0)

    def __getitem__(self, spelling: str) -> str:
        return self._of[spelling]

    def at(self, text: str, at: int) -> str:
        """Return the longest misspelling that begins at ``at``, or "" if there is none."""
        rest = text[at : at + self.longest]
        return next((rest[:end] for end in range(len(rest), 0, -1) if rest[:end] in self._of), "")

    def before(self, text: str) -> str:
        """Return the longest misspelling at the end of ``text``, or "" if there is none."""
        rest = text[-self.longest :] if self.longest else ""
        return next((rest[at:] for at in range(len(rest)) if rest[at:] in self._of), "")

    def may_stand(self, text: str, at: int) -> bool:
        """Return whether a misspelling begins at ``at``, or might begin there once more text has arrived."""
        return self.at(text, at) != "" or self.may_begin(text[at : at + self.longest])

    def may_begin(self, rest: str) -> bool:
        """Return whether any misspelling begins with the entire ``rest``."""
        at = bisect_left(self._sorted, rest)
        return at < len(self._sorted) and self._sorted[at].startswith(rest)


@lru_cache(maxsize=128)
def spellings_of(marker: str) -> Spellings:
    """Return the misspellings of a single marker."""
    return Spellings([marker])


@lru_cache(maxsize=64)
def _correction(markers: tuple[str, ...]) -> tuple[re.Pattern[str], Mapping[str, str]]:
    """Return a pattern that matches the markers in any spelling, and a mapping from each spelling to the correct
    marker.

    A spelling that could stand for several markers is mapped to "", because call parsers can handle a missing
    marker.
    """
    means: dict[str, str] = {}
    for marker in markers:
        for spelling in misspelled(marker):
            means[spelling] = marker if means.get(spelling, marker) == marker else ""
    means |= {marker: marker for marker in markers}
    debris = r"(?P<before>[<\\/]{1,2}[ /\\]{0,2})??"
    return re.compile(rf"{debris}(?P<spelling>{_either(means)})(?P<after>\s?/?>|\])?+"), means


def corrected(body: str, markers: tuple[str, ...], openers: tuple[tuple[str, str], ...] = ()) -> str:
    """Return a body in which all misspelled markers have been corrected.

    ``openers``: opening tags with a name, such as ``<parameter=city>``, as pairs of the text before and after the name.
    """
    if openers:
        pattern, ends = _openers(openers)
        body = pattern.sub(lambda found: f"{openers[ends[found[1]]][0]}{found[2]}{openers[ends[found[1]]][1]}", body)
    if not markers:
        return body
    pattern, means = _correction(markers)
    return pattern.sub(lambda found: _right(found, means), body)


def _right(found: re.Match[str], means: Mapping[str, str]) -> str:
    """Return the correct marker for a match of the pattern, without the remains of misspelled brackets around it."""
    spelling = found["spelling"]
    marker = means[spelling]
    before, after = found["before"] or "", found["after"] or ""
    before = "" if spelling != marker and marker.startswith("</") else before
    after = "" if not spelling.endswith(">") and marker.endswith(">") else after
    return f"{before}{marker}{after}"


@lru_cache(maxsize=64)
def spelled(marker: str, starts: str = "", ends: str = "") -> str:
    """Return a pattern for a marker in any spelling that begins with ``starts`` and ends with ``ends``."""
    return _either([marker, *_kept(marker, starts, ends), *(_joined(marker) if ends else ())])


@lru_cache(maxsize=64)
def _openers(openers: tuple[tuple[str, str], ...]) -> tuple[re.Pattern[str], Mapping[str, int]]:
    """Return a pattern for opening tags with a name, and a mapping from each spelling of the text before the name to
    the index in ``openers``.

    If several ``openers`` have the same misspelling, it counts as the last of them, which opens a parameter, because a
    call contains more parameters than names.
    """
    means: dict[str, int] = {}
    for place, (before, _) in enumerate(openers):
        means |= dict.fromkeys((*_kept(before, "", before[-1]), *_joined(before)), place)
    means |= {before: place for place, (before, _) in enumerate(openers)}
    after = openers[0][1]
    # After a quoted name, other attributes, and any text before a ">" on the same line, belong to the tag and not to
    # the value.
    end = (
        rf"(?:\s{{0,4}}/?{after}|(?=\s*\n))"
        if len(after) == 1
        else r"(?:\"(?:\s[^<>\n]{0,64})?/?>|\"(?!\]|\s{1,4}\w{1,32}=|[^<>\n]{0,80}>)|>)"
    )
    return re.compile(rf"({_either(means)})([\w.:/$-]{{1,128}}+){end}"), means


def _either(words: Iterable[str]) -> str:
    """Return a fast pattern for the longest matching word, with common prefixes factored out."""
    rest: dict[str, list[str]] = {}
    for word in words:
        rest.setdefault(word[:1], []).append(word[1:])
    found = [re.escape(first) + _either(ends) for first, ends in rest.items() if first]
    return "" if not found else f"(?:{'|'.join(found)}){'?' if '' in rest else ''}"


def _joined(marker: str) -> Iterable[str]:
    """Return the spellings of an opening tag in which one of ``_JOINTS`` replaces the ``=`` before the name."""
    return [marker.replace("=", joint) for joint in _JOINTS] if "=" in marker else []


def _kept(marker: str, starts: str, ends: str) -> Iterable[str]:
    """Return the misspellings of a marker that begin with ``starts`` and end with ``ends``.

    If ``ends`` is not empty, spellings that lack the beginning of the marker are included.
    """
    slips = misspelled(marker) | {marker[-size:] for size in range(3, len(marker)) if ends}
    return (slip for slip in slips if slip.startswith(starts) and slip.endswith(ends))
