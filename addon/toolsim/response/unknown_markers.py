"""Recognizes the markers of unknown model families, if the text between them would count as a call without the markers.

    <tools>{"name": …}</tools>      <|function|>…<|/function|>      [ACTION]…[/ACTION]

A call between an opening and a closing marker counts wherever an untagged call would count. The names of the markers
must refer to calls. For example, the content of ``<example>`` or ``<tool_response>`` is not a call.
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
"""Tokens that models write at the end of a turn. The client does not receive a token that follows a call."""

ENDS_OF_TURN = frozenset(TURN_ENDS) - {"<|end|>"}
"""Tokens after which the turn cannot contain another call. ``<|end|>`` is excluded, because gpt-oss ends every message
with it.
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
"""A pattern for text that ends with a closing marker, or with the second half of a closing marker, directly after other
characters. In a sentence, a space would precede the marker.
"""

_ALONE = re.compile(r"(?:[^<{\[(]*[.!?:…。！？])?\s*(?:</?[\w:|｜-]*)?")
"""A pattern for the text before a closing marker that does not belong to a call. This text is empty or consists of
complete sentences, possibly followed by the first half of the marker.
"""


def ends_unreadable_call(before: str, most: int) -> bool:
    """Return whether text without calls ends with the closing marker of a call. If so, the text contains a call that
    could not be parsed.

    ``before``: the text since the last call, but at most its last ``most`` characters.
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
    """Return the end of the marker that begins at ``at``, 0 if no marker begins there, or None if more text is
    needed.
    """
    rest = text[at : at + _LONGEST]
    found = match_at(_CLOSING if closing else _OPENING, rest, 0, final=final or len(rest) == _LONGEST)
    if found is None:
        return 0
    if found.partial:
        return None
    if closing and found[0] in TURN_ENDS:
        return at + int(found.end())
    return at + int(found.end()) if _means_a_call(found[0]) else 0
