"""Closing tags of other forms, which models that know several of them write behind complete JSON.

<tool_call>{…}</function>                 it closes the block
<tool_call>{…}</think> </tool_call>       the right tag behind it belongs to the block too
"""

from __future__ import annotations

_NAMES = ("think", "function", "function_call", "tool", "tools", "tool_calls", "tool_use", "invoke")
_ENDS = tuple(f"</{name}>" for name in _NAMES)
_MAX_SPACE = 16
"""Characters of whitespace between such a tag and the right one."""

MORE = -1


def foreign_end(text: str, at: int, closing: str, *, final: bool) -> int:
    """Return where a closing tag of another form at ``at`` ends, including the right one behind it.

    0: there is none. MORE: undecided until more text arrives; never if the text is ``final``.
    """
    if not final and any(end.startswith(text[at : at + len(end)]) and len(text) - at < len(end) for end in _ENDS):
        return MORE
    foreign = next((end for end in _ENDS if text.startswith(end, at)), "")
    if not foreign or foreign == closing:
        return 0
    after = at + len(foreign)
    behind = text[after : after + _MAX_SPACE + len(closing)]
    right = behind.lstrip(" \t\r\n")
    space = len(behind) - len(right)
    if space > _MAX_SPACE:
        return after
    if right.startswith(closing):
        return after + space + len(closing)
    return MORE if not final and len(right) < len(closing) and closing.startswith(right) else after
