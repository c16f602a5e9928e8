"""The tags that open and close blocks, and functions that find incomplete tags at the end of the text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from toolsim.core.custom_forms import CustomForm
from toolsim.response.call_forms import FOREIGN, CallForm, custom_rows
from toolsim.response.misspelled import Spellings
from toolsim.response.partial import match_at
from toolsim.response.tagged_pairs import M3_MARK
from toolsim.response.unknown_markers import TURN_ENDS

_FENCE = r"`{3,8}\w{0,16}[ \t\r]{0,8}\n\s{0,64}"
_CDATA = "<![CDATA["
_END_CDATA = "]]>"
MAX_OPENING = 128
"""Maximum length of an opening tag, including custom tags, in characters."""

_MAX_TAG = 300
"""Maximum length of a tag that opens a value, in characters."""

_FOREIGN_NAMES = (
    *("think", "function", "function_call", "tool", "tools", "tool_calls", "tool_use", "invoke"),
    *("parameter", "param", "arg_value"),
)
_FOREIGN_ENDS = (*(f"</{name}>" for name in _FOREIGN_NAMES), *TURN_ENDS)
_TAILS = (
    *(end for end in _FOREIGN_ENDS if end != "</think>"),
    *(
        "</function_calls>",
        "</function_invocation>",
        "</tool_call>",
        "[/TOOL_CALLS]",
    ),
    *TURN_ENDS,
)
"""Closing tags and end-of-turn tokens that models write after a block. ``Tags.tails`` adds the closing tags of all
blocks.
"""

_INNER_SPACE = r"\s{0,4}"
_AROUND_MARKERS = re.compile(r"(?<=\|>)\s{1,4}|\s{1,4}(?=<\||\Z)")
"""A pattern for the whitespace that gpt-oss models sometimes write next to the markers within a tag."""

_MAX_FOREIGN_SPACE = 16
"""Maximum amount of whitespace between a closing tag of another form and the correct closing tag, in characters."""

_M3_TAG = rf"{re.escape(M3_MARK)}</?[^<>]{{0,256}}>"

MORE = -1


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags that a sentinel recognizes."""

    closing: dict[str, str]
    """Maps opening tags to closing tags."""
    opening: re.Pattern[str]
    """A pattern for opening tags."""
    hint: re.Pattern[str]
    """A pattern for the first two characters of opening tags, or only the first one at the end of the text. It is used
    to skip most ``<`` in prose.
    """
    beginnings: frozenset[str]
    """All incomplete beginnings of opening tags, such as ``<tool_c``."""
    ours: frozenset[str]
    """toolsim's own opening tags."""
    ours_end: str
    """toolsim's own closing tag, with the configured name."""
    tails: tuple[str, ...]
    """Surplus closing tags and end-of-turn tokens that models write after a block."""
    misspelled: Spellings
    """The misspellings of the opening tags."""
    rows: Mapping[str, tuple[CallForm, ...]]
    """The call forms that can follow each opening tag of a custom form."""
    first: re.Pattern[str]
    """A pattern for the first characters of tags."""
    is_usual: bool
    """Whether ``first`` is the usual pattern. This is the case if all markers of custom forms begin with ``<``, ``[``
    or ``]``.
    """


@lru_cache(maxsize=16)
def tags(sentinel: str, use_tool: bool, foreign: bool, forms: tuple[CustomForm, ...] = ()) -> Tags:
    """Return the tags for a sentinel.

    ``sentinel``: the name of toolsim's own tag. ``use_tool``: whether to include ``<use_tool>``. ``foreign``: whether
    to include the markers of model families and of the custom ``forms``.
    """
    names = [sentinel, "use_tool"] if use_tool and sentinel != "use_tool" else [sentinel]
    ours = {f"<{name}>": f"</{name}>" for name in names}
    custom = {form.opening: form.closing for form in forms}
    closing = {**custom, **FOREIGN, **ours} if foreign else ours
    firsts = {marker[0] for form in forms for marker in (form.opening, form.closing)}
    hint = re.compile("|".join(rf"{re.escape(first)}(?:[{_second(closing, first)}]|\Z)" for first in _firsts(closing)))
    return Tags(
        closing,
        re.compile(_either([tag for tag in closing if tag.startswith("<")], [tag for tag in closing if tag[0] != "<"])),
        hint,
        frozenset(tag[:end] for tag in closing for end in range(1, len(tag))),
        frozenset(ours),
        f"</{sentinel}>",
        tuple(sorted({*filter(None, closing.values()), *(_TAILS if foreign else ())}, key=len, reverse=True)),
        Spellings([*ours, *closing], filter(None, closing.values()), hint=hint),
        custom_rows(forms),
        re.compile(f"[{re.escape(''.join(sorted(firsts | set('<[]◁'))))}]"),
        firsts <= set("<[]"),
    )


def _firsts(tags: Iterable[str]) -> list[str]:
    return sorted({tag[0] for tag in tags})


def _second(tags: Iterable[str], first: str) -> str:
    """Return the characters that can directly follow ``first`` in a tag, escaped for use in a character class."""
    return "".join(sorted({re.escape(behind) for tag in tags for char, behind in pairwise(tag) if char == first}))


def _either(angled: list[str], squared: list[str]) -> str:
    # All tags in ``angled`` begin with "<". The pattern contains this "<" only once, because most "<" in the text do
    # not begin a tag.
    within = (
        re.escape(tag[1:]).replace(r"\|>", rf"\|>{_INNER_SPACE}").replace("<", f"{_INNER_SPACE}<") for tag in angled
    )
    return "|".join([f"<(?:{'|'.join(one.removesuffix(_INNER_SPACE) for one in within)})", *map(re.escape, squared)])


def without_space(tag: str) -> str:
    """Return a tag without whitespace next to its markers (``<|channel|> commentary``)."""
    return _AROUND_MARKERS.sub("", tag) if "|>" in tag else tag


@lru_cache(maxsize=256)
def ends(opening: str, closing: str, value: str) -> re.Pattern[str]:
    """Return a pattern for the tags that are recognized in a literal body (see ``sentinel``).

    ``value``: a pattern for the markers at which a value begins or ends (``OpenValue.marks``).
    """
    return re.compile("|".join(filter(None, [re.escape(closing), re.escape(opening), value])))


class OpenValue:
    """Tracks whether the current position in a literal body is inside a value. ``row``: the call form, which defines
    the markers around values.

    ``marks``: a pattern for the next relevant marker. Outside values, this is a marker that opens a value. Inside a
    value, it is the marker that ends the value, or the beginning of a CDATA section.
    """

    def __init__(self, row: CallForm | None = None) -> None:
        self._row = row
        self._end = ""
        self._outer = ""  # The marker that ends the value around an open CDATA section, otherwise "".
        self._blocks = 0
        self._is_closed = False
        self.marks = self._new_marks()

    @property
    def is_open(self) -> bool:
        """Whether the current position is inside a value."""
        return bool(self._end)

    def _new_marks(self) -> str:
        if not self._end:
            return f"(?P<value>{self._row.value[0]})" if self._row and self._row.value[0] else ""
        return re.escape(self._end) + (f"|{re.escape(_CDATA)}" if self._has_cdata else "")

    def passes(self, match: re.Match[str], opening: str) -> bool:
        """Process a match of the pattern from ``ends``. Return False if the current value has no end.

        Outside a value, the match must be a marker that opens a value. Inside a value, it can be any marker or tag. A
        value has no end if it contains an unmatched closing tag and, after it, an opening tag.
        """
        if not self._end:
            assert self._row is not None
            self._end = self._row.value[1].format(*match.groups()[1:])
            self._blocks = 0
            self._is_closed = False
            self.marks = self._new_marks()
        elif match[0] == self._end:
            self._end = self._outer
            self._outer = ""
            self.marks = self._new_marks()
        elif match[0] == _CDATA:
            self._end, self._outer = _END_CDATA, self._end
            self.marks = self._new_marks()
        elif self._outer:
            pass  # In a CDATA section, only the ``]]>`` at its end is recognized.
        elif match[0] == opening:
            self._blocks += 1
            return not self._is_closed
        elif self._blocks:
            self._blocks -= 1
        else:
            self._is_closed = True
        return True

    def held_from(self, text: str, start: int) -> int:
        """Return the start of a marker that may be incomplete at the end of ``text``, or the length of ``text`` if
        there is none.
        """
        at = open_tag(text, start)
        if self._row is not None and M3_MARK in self._row.value[1]:
            at = min(at, _open_m3(text, start))
        return max(start, min(at, len(text) - len(_END_CDATA) + 1)) if self._outer else at

    @property
    def _has_cdata(self) -> bool:
        return not self._outer and self._row is not None and "{}" in self._row.value[1]


_FIRST = re.compile(r"[<\[\]◁]")
"""A pattern for the possible first characters of a marker."""


def held_from(text: str, start: int, beginnings: frozenset[str], first: re.Pattern[str] = _FIRST) -> int:
    """Return the start of the longest suffix of ``text`` that is one of the ``beginnings``, or the length of ``text``
    if there is none.
    """
    start = max(start, len(text) - MAX_OPENING)
    for found in first.finditer(text, start):
        if without_space(text[found.start() :]) in beginnings:
            return found.start()
    return len(text)


def open_tag(text: str, start: int) -> int:
    """Return the start of an incomplete tag at the end of ``text``, or the length of ``text`` if there is none."""
    at = text.rfind("<", max(start, len(text) - _MAX_TAG))
    return len(text) if at == -1 or ">" in text[at:] else at


def _open_m3(text: str, start: int) -> int:
    """Return the start of an incomplete MiniMax M3 tag at the end of ``text``, or the length of ``text`` if there is
    none.
    """
    if "]" not in text[-_MAX_TAG:]:
        return len(text)
    start = max(start, len(text) - _MAX_TAG)
    return next((at for at in range(start, len(text)) if text[at] == "]" and _is_half_m3(text, at)), len(text))


def _is_half_m3(text: str, at: int) -> bool:
    found = match_at(_M3_TAG, text, at)
    return found is not None and found.partial


def behind_fence(text: str, at: int, *, final: bool) -> int | None:
    """Return the end of the line that opens a code fence at ``at``. Returns ``at`` if there is no code fence, or None
    if more text is needed.
    """
    fence = match_at(_FENCE, text, at, final=final)
    return at if fence is None else None if fence.partial else fence.end()


def foreign_end(text: str, at: int, closing: str, *, final: bool) -> int:
    """Return the end of a closing tag of another call form at ``at``. A correct closing tag that follows is included.

    Models that were trained on several forms write such tags after complete JSON::

        <tool_call>{…}</function>                 closes the block
        <tool_call>{…}</think> </tool_call>       the correct closing tag also belongs to the block

    Returns 0 if there is no such tag, or MORE if more text is needed, but never MORE if the text is ``final``.
    """
    if not final and any(
        end.startswith(text[at : at + len(end)]) and len(text) - at < len(end) for end in _FOREIGN_ENDS
    ):
        return MORE
    foreign = next((end for end in _FOREIGN_ENDS if text.startswith(end, at)), "")
    # gpt-oss ends every message, not only calls, with an end-of-turn token.
    if not foreign or foreign == closing or (closing == "<|call|>" and foreign in TURN_ENDS):
        return 0
    after = at + len(foreign)
    behind = text[after : after + _MAX_FOREIGN_SPACE + len(closing)]
    right = behind.lstrip(" \t\r\n")
    space = len(behind) - len(right)
    if space > _MAX_FOREIGN_SPACE:
        return after
    if right.startswith(closing):
        return after + space + len(closing)
    return MORE if not final and len(right) < len(closing) and closing.startswith(right) else after
