"""Detects calls that a client receives as text. The client cannot run them, and shows them to its user.

toolsim's own parser is not used, because this module must also find the calls that the parser misses. Any trace of a
call to an offered tool counts, whether the call is complete or broken.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_MARKUP = re.compile(r"<tool_call|<use_tool|<function=|[\"'](?:arguments|parameters)[\"']\s*:")
_BEFORE_NAME = r"^[\s\[`]*"
"""Matches text that can precede a call on its line. A line with other words before the name is prose about the tool."""


def looks_like_call(text: str) -> bool:
    """Return whether text contains the markup or the JSON keys of a call to any tool."""
    return _MARKUP.search(text) is not None


def holds_call(text: str, names: Collection[str]) -> bool:
    """Return whether text contains a call to one of the tools with these names, in markup, JSON or code."""
    if not names or not any(name in text for name in names):
        return False
    if looks_like_call(text):
        return True
    return re.search(rf"{_BEFORE_NAME}(?:{'|'.join(map(re.escape, names))})\(", text, re.MULTILINE) is not None
