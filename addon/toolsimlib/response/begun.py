"""A continued call: what an earlier round wrote of it, joined to what this one writes.

A model that is asked to continue a call either does so or starts over. It has started over if its first visible
characters are those with which the call began; they are held back while that is undecided. A continuation resumes at
the exact character: whitespace at the joint may belong to a string.
"""

from __future__ import annotations

# Characters of a beginning that distinguish it from a continuation: enough for a tag, or for a brace and a key.
_MAX_HEAD = 16


class Continuation:
    """Joins ``text``, the beginning of a call, to its continuation."""

    def __init__(self, text: str) -> None:
        self._begun = text
        bare = text.lstrip()
        # A model that starts over may write different whitespace behind the tag.
        self._head = bare[: bare.find(">") + 1] or bare[:_MAX_HEAD] if bare.startswith("<") else bare[:_MAX_HEAD]
        self._waiting: str | None = ""

    def join(self, text: str) -> str:
        """Return the text to be parsed, "" while it is undecided whether the model continues."""
        if self._waiting is None:
            return text
        self._waiting += text
        visible = self._waiting.lstrip()
        if len(visible) < len(self._head) and self._head.startswith(visible):
            return ""
        whole = self._waiting if visible.startswith(self._head) else self._begun + self._waiting
        self._waiting = None
        return whole

    def end(self) -> str:
        """Return what is left to be parsed at the end of the text: the model did not start over."""
        waiting, self._waiting = self._waiting, None
        return "" if waiting is None else self._begun + waiting
