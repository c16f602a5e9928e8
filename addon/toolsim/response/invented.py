"""An answer that is nothing but a call of a tool that there is not: a greeting in JSON.

A small model that is shown tools sometimes answers a greeting by ``{"name": "greet", "arguments": {…}}``, though nobody
declared such a tool. That is text, since the client could not run it. But asked once more, without tools, the model
answers in words.

    answer := (fence | tag)? "["? {"name": "<no declared tool>", "arguments": …      in any spelling (``call_keys``)

1. The first text of an answer decides: what does not begin like this passes, and nothing later is looked at. Reasoning
   may come before it, nothing else.
2. It is withheld as long as it may still be such an answer. It is text, unchanged, as soon as another name or key
   comes, anything visible stands beside its brackets or is elided, or any other item arrives; and so is one that was
   cut off.
3. At its end the answer is a ``Retry``: its ``otherwise`` is what it says.
4. A declared tool's name is none of this: whatever is wrong with the call, a tool was meant.

``ResponseRewriter`` enters this room only if the first text begins with a bracket or a mark. Where the text is cut
makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import regex

from toolsim.core.events import ClientEvent, Ended, KeepAlive, Opened, ReasoningDelta, TextDelta
from toolsim.response.broken_call import Brackets
from toolsim.response.call_keys import ARGUMENTS, HEAD
from toolsim.response.retry import SECOND_OPINION, Fault, Retry

_MAX_HEAD = 1_024
_MAX_CHARS = 65_536

_HEAD = regex.compile(rf"\s*+(?P<mark>```\w*+\s*+|<\w++>\s*+)?(?P<body>\[?\s*+{HEAD}\s*+,\s*+{ARGUMENTS})")
_NAMED = regex.compile(rf"[^{{]*+{HEAD}")


class Invented:
    """What is withheld of one answer. ``is_declared``: whether a name means a tool of the client's.

    ``retry``: that with which the answer ends, None if it passes. ``is_over``: whether nothing is withheld any more.
    """

    def __init__(self, is_declared: Callable[[str], bool]) -> None:
        self._is_declared = is_declared
        self._held: list[TextDelta] = []
        self._head = ""  # The text up to the arguments, while these have not begun.
        self._name = ""  # That of the call, once they have.
        self._brackets = Brackets(fenced=False)
        self._left = _MAX_CHARS
        self.retry: Retry | None = None
        self.is_over = False

    @property
    def is_holding(self) -> bool:
        """Whether text is withheld."""
        return bool(self._held)

    def take(self, events: Iterable[ClientEvent]) -> list[ClientEvent]:
        """Take events of the answer, and return what passes."""
        passed: list[ClientEvent] = []
        for event in events:
            match event:
                case _ if self.is_over:
                    passed.append(event)
                case Opened() | KeepAlive():
                    passed.append(event)
                case ReasoningDelta() if not self._held:
                    passed.append(event)
                case TextDelta(text=text) if not self._held and text.isspace():
                    passed.append(event)
                case TextDelta(text=text, choice=0) if self._holds(text):
                    self._held.append(event)
                case Ended() if self._held and (retry := self._retry(event)) is not None:
                    self.is_over, self.retry, self._held = True, retry, []
                case _:
                    self.is_over = True
                    passed += [*self._held, event]
                    self._held = []
        return passed

    def _holds(self, text: str) -> bool:
        """Return whether the answer may still be an invented call (rule 2)."""
        self._left -= len(text)
        if self._left < 0:
            return False
        if self._name:
            return self._brackets.read(text)
        self._head += text
        found = _HEAD.match(self._head, partial=True)
        if found is None or found.partial or found.end() > _MAX_HEAD:
            named = _NAMED.match(self._head)
            is_known = named is not None and self._is_declared(named["name"])
            return not is_known and len(self._head) <= _MAX_HEAD and found is not None and found.partial
        self._name = found["name"]
        self._brackets = Brackets(fenced=(found["mark"] or "").startswith("`"))
        return not self._is_declared(self._name) and self._brackets.read(self._head[found.start("body") :])

    def _retry(self, end: Ended) -> Retry | None:
        """Return the fault of the whole answer; None if it is text."""
        text = "".join(event.text for event in self._held)
        # Small models forget a bracket: the last one need not close the first.
        is_whole = text.rstrip("` \t\r\n").endswith(("}", "]"))
        if not self._name or not is_whole or end.reasons != {0: "stop"}:
            return None
        fault = Fault(SECOND_OPINION, "an answer in words", self._name)
        return Retry(fault, text, (*self._held, Ended(end.reasons)), end.usage)
