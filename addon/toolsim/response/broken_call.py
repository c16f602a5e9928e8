"""Answers that consist of one untagged call, which cannot be made: the model can be asked again.

``untagged`` finds calls that are right; everything else is text. But a model that starts its answer with a call to a
tool on offer, and writes nothing beside it, meant to call. Such an answer is held back to its end:

    answer := fence? "["? {"name": "<tool on offer>", "arguments" …      in any spelling of these keys (``call_keys``)

1. It is text as soon as anything visible stands beside its brackets, anything is elided (``...``), or anything but text
   arrives: then it talks about a call, or holds another one.
2. At its end it is judged as if it stood in a tagged block, and every schema counts. If it cannot be read, or does not
   fit, that is its fault. An unknown name is not a fault: nobody can tell what was meant.
3. If the length limit cut it off before it broke, that is not a fault: the model can continue it.
4. Nothing is held back here unless the model may be asked again. Where the text is split does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from toolsim.core.plan import Plan
from toolsim.core.report import Report
from toolsim.response.call_keys import ARGUMENTS_KEYS, HEAD
from toolsim.response.judge import Judge
from toolsim.response.pieces import Block, BrokenCall, Piece, TextHeld
from toolsim.response.untagged import Untagged
from toolsim.response.verdict import MALFORMED_JSON, SCHEMA_MISMATCH, Call, Rejected, Violation

_HEAD = re.compile(rf"(?P<fence>```(?i:json|tool_call)?[ \t\r]*\n\s*)?(?:\[\s*)?{HEAD}[\s,]*")
_KEYS = tuple(f'"{key}"' for key in ARGUMENTS_KEYS)
_CLOSING_MARK = re.compile(r"\n?[ \t\r]*```+\s*\Z")
_FAULTS = (MALFORMED_JSON, SCHEMA_MISMATCH)


class BrokenCalls(TextHeld[Untagged]):
    """Wraps the parser ``inner``, and holds such an answer back. Used like ``inner``; ``limit`` in characters."""

    def __init__(self, inner: Untagged, plan: Plan, judge: Judge, limit: int) -> None:
        super().__init__(inner)
        self._plan = plan
        self._judge = judge
        self._left = limit
        self._brackets = Brackets(fenced=False)
        self._head = ""  # The held text, while the key behind the name is incomplete.

    def finish(self, *, cut: bool = False) -> Sequence[Piece | BrokenCall]:
        """Return what is left at the end of the text, as the inner parser does."""
        was_broken = bool(self._held)
        pieces = self._inner.finish(cut=cut)
        if self._is_over or (cut and not was_broken):
            return pieces
        passed = self._take(pieces)
        if not self._held or self._head:
            return [*passed, *self.release()]
        raw = "".join(self._held)
        self._held = []
        return [*passed, BrokenCall(raw, self._refused(raw))]

    def _holds(self, text: str) -> bool | None:
        """Return whether the answer may still be such a call; None for whitespace before it."""
        if not self._held and text.isspace():
            return None
        self._left -= len(text)
        if self._left < 0:
            return False
        start = 0
        if not self._held:
            # The inner parser emits what it took for a call as one text.
            found = _HEAD.match(text)
            if found is None or not self._judge.toolbox.offers(found["name"]):
                return False
            self._brackets = Brackets(fenced=found["fence"] is not None)
            self._head = text
            start = max(found.end("fence"), 0)
        elif self._head:
            self._head += text
        return self._brackets.read(text[start:]) and self._key_fits()

    def _key_fits(self) -> bool:
        found = _HEAD.match(self._head)
        if found is None:
            return True
        behind = self._head[found.end() :]
        if behind.startswith(_KEYS):
            self._head = ""
            return True
        return any(key.startswith(behind) for key in _KEYS)

    def _refused(self, raw: str) -> Rejected | Violation | None:
        found = _HEAD.match(raw)
        body = _CLOSING_MARK.sub("", raw[found.end("fence") :]) if found and found["fence"] else raw
        # Brackets that the model left open are not added: nothing here shows that the call was complete.
        block = Block("json", "", body, "\n" if self._brackets.is_balanced else "")
        if self._judge.answer_format is not None and self._judge.answer_format.is_answer(body):
            return None
        as_strict = tuple(replace(tool, strict=True) for tool in self._plan.tools)
        for plan, reasons in ((self._plan, _FAULTS), (replace(self._plan, tools=as_strict), (SCHEMA_MISMATCH,))):
            # In the report all of this is text: nothing is counted.
            for verdict in Judge(plan, Report()).block(block):
                if not isinstance(verdict, Call) and verdict.reason in reasons and verdict.expected:
                    return verdict
        return None


class Brackets:
    """Tracks the brackets of JSON that may be broken, and notices anything visible beside them."""

    def __init__(self, *, fenced: bool) -> None:
        self._fenced = fenced
        self._depth = 0
        self._in_string = self._is_escaped = self._is_closed = False
        self._dots = 0

    @property
    def is_balanced(self) -> bool:
        """Whether every string and bracket was closed."""
        return not self._depth and not self._in_string

    def read(self, text: str) -> bool:
        """Return whether all of it may still be JSON."""
        return all(map(self._read, text))

    def _read(self, char: str) -> bool:
        if self._in_string:
            self._in_string = self._is_escaped or char != '"'
            self._is_escaped = char == "\\" and not self._is_escaped
            return True
        self._dots = self._dots + 1 if char == "." else 0
        if char.isspace():
            return True
        if char == "`":
            self._is_closed = True
            return self._fenced
        if self._is_closed or char == "…" or self._dots > 1:
            return False
        if char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth = max(0, self._depth - 1)
        elif self._depth == 0:
            return char in ",;"
        self._in_string = char == '"'
        return True
