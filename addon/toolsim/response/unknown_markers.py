"""Recognizes markers of unknown model families around text that would count as a call without these markers.

    <tools>{"name": …}</tools>      <|function|>…<|/function|>      [ACTION]…[/ACTION]

A call must not be lost because of a marker, so a call between an opening and a closing marker counts wherever a bare
call would count. The names of the markers must refer to calls: the content of ``<example>`` or ``<tool_response>`` is
not a call.
"""

from __future__ import annotations

import re

from toolsim.response.partial import match_at

_NAME = r"[A-Za-z_][\w:.▁-]{0,40}+"
_OPENING = rf"<[|｜]?{_NAME}[|｜]?>|\[[A-Z][A-Z_]{{2,30}}\]"
_CLOSING = rf"</{_NAME}>|<(?:end_of_turn|eos)>|<[|｜]/?{_NAME}[|｜]>|<{_NAME}[|｜]>|\[/?[A-Z][A-Z_]{{2,30}}\]"
_LONGEST = 48

TURN_ENDS = (
    *(
        "<|im_end|>",
        "<|observation|>",
        "<|user|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|endoftext|>",
    ),
    *("<|end_of_text|>", "<|tool_response>", "<|END_OF_TURN_TOKEN|>", "<turn|>", "<end_of_turn>", "<eos>", "</s>"),
    *("<｜end▁of▁sentence｜>", "<|role_end|>", "[e~["),
)
"""The tokens that models write to end a turn. After a call, they are dropped together with the call."""

ENDS_OF_TURN = frozenset(TURN_ENDS) - {"<|end|>"}
"""Tokens after which the turn contains no more calls. ``<|end|>`` is not included, because it ends each gpt-oss
message.
"""

_MEANS_A_CALL = re.compile(r"tool|call|func|action|invoke|plugin|command|exec|request", re.IGNORECASE)
_MEANS_NONE = re.compile(
    r"respon|result|output|observ|example|sample|schema|defin|descr|list|avail|histor|format|think|error",
    re.IGNORECASE,
)


_STRAY_END = re.compile(
    rf"(?:[\]}})>[\n\w]|```)(?P<marker>{_CLOSING}|</[｜‖|]{{1,2}}DSML[｜‖|]{{1,2}}\w{{1,20}}>|_call>|_CALL\])\s*\Z"
    r"|[\]})]\w{1,20}[|｜]?[>\]]\s*\Z"
)
"""A pattern for a closing marker, or half of a marker, at the end of text. In a sentence, a space would precede it."""

_ALONE = re.compile(r"(?:[^<{\[(]*[.!?:…。！？])?\s*(?:</?[\w:|｜-]*)?")
"""A pattern for the text before a closing marker that does not close a call. It consists of complete sentences, or is
empty, and can end with half of the marker.
"""


def ends_unreadable_call(before: str, most: int) -> bool:
    """Return whether text outside calls ends with the closing marker of a call, in which case the call was unreadable.

    ``before``: the text since the last call, at most its last ``most`` characters.
    """
    end = max(0, len(before) - _LONGEST * 2)
    found = _STRAY_END.search(before, end)
    if found is None or found["marker"] is None:
        return found is not None
    is_alone = len(before) < most and _ALONE.fullmatch(before, 0, found.start("marker")) is not None
    return _means_a_call(found["marker"]) and not is_alone


def _means_a_call(marker: str) -> bool:
    return _MEANS_A_CALL.search(marker) is not None and _MEANS_NONE.search(marker) is None


def marker_end(text: str, at: int, *, closing: bool = False, final: bool) -> int | None:
    """Return the end of the marker at ``at``, 0 if there is no marker, or None if more text is needed."""
    rest = text[at : at + _LONGEST]
    found = match_at(_CLOSING if closing else _OPENING, rest, 0, final=final or len(rest) == _LONGEST)
    if found is None:
        return 0
    if found.partial:
        return None
    if closing and found[0] in TURN_ENDS:
        return at + int(found.end())
    return at + int(found.end()) if _means_a_call(found[0]) else 0
