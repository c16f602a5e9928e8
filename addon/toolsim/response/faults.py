"""Finds answers that consist of one untagged call that cannot be made, so that the model can be retried.

The module also handles calls that were cut off, which the model continues (``Continuation``).

``untagged`` finds valid calls and treats all other output as text. But an answer that begins like this, and contains
only this call, was intended as a call:

    answer := mark? "["? {"name": "…", "arguments": …      in any spelling of these keys (``call_keys``)

1. The answer is text as soon as visible text follows its brackets, a part is elided (``...``), or a non-text event
   arrives. It then describes a call, or contains another call.
2. A call that was cut off by the length limit before it became invalid is not a fault, because the model can continue
   it.
3. Text is held back only if a retry is allowed. The result does not depend on how the text is split.

``BrokenCalls`` holds back a call to an offered tool. At its end, the call is judged as if it were tagged and its tool
were strict. It is a fault if it cannot be read or does not match the tool's schema.

``UndeclaredCall`` withholds a call to a tool that does not exist: a small model that sees tools sometimes answers a
greeting with ``{"name": "greet", "arguments": {…}}``. Such a call is text, since the client could not run it. But if
the model is retried without tools, it answers in plain text. Only the first text of an answer after its reasoning can
be such a call. When the answer ends, the result is a ``Retry``, whose ``otherwise`` is the unchanged answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from toolsim.core.events import ClientEvent, Ended, KeepAlive, Opened, ReasoningDelta, TextDelta
from toolsim.core.plan import Plan
from toolsim.core.report import Report
from toolsim.response.call_keys import ARGUMENTS, HEAD
from toolsim.response.judge import Judge
from toolsim.response.partial import match_at
from toolsim.response.retry import SECOND_OPINION, Fault, Retry
from toolsim.response.segments import Block, BrokenCall, Parser, ParserWrapper, Segment, TextBuffer
from toolsim.response.verdict import MALFORMED_JSON, SCHEMA_MISMATCH, JudgedCall, Rejected, Violation

_MAX_HEAD = 1_024
_MAX_CHARS = 65_536
_FENCE = r"```(?i:json|tool_call)?[ \t\r]*\n\s*+"
_ANY_MARK = r"```\w*+\s*+|<\w++>\s*+"
_NAMED = re.compile(rf"[^{{]*+{HEAD}")
_CLOSING_MARK = re.compile(r"\n?[ \t\r]*```+\s*\Z")
_CALL_START = re.compile(r"\s*<[A-Za-z_][A-Za-z0-9_.-]*>\s*[\[{]")
_FAULTS = (MALFORMED_JSON, SCHEMA_MISMATCH)


def begins_call(text: str) -> bool:
    """Return whether ``text`` begins with a tag and JSON, like a call that the model left unfinished."""
    return _CALL_START.match(text) is not None


class SoleCall:
    """Checks whether an answer consists only of a call. ``accepts``: returns whether a tool's name is acceptable.

    ``mark``: a pattern for text that can precede the JSON. ``name``: the tool's name, or "" until the arguments begin.
    """

    def __init__(self, mark: str, accepts: Callable[[str], bool]) -> None:
        self.pattern = rf"\s*+(?P<mark>{mark})?(?P<body>\[?\s*+{HEAD}[\s,]*+{ARGUMENTS})"
        self._accepts = accepts
        self._head = ""  # The text before the arguments, until the arguments begin.
        self._is_fenced = False
        self._depth = 0
        self._in_string = self._is_escaped = self._is_closed = False
        self._dots = 0
        self.name = ""
        self.start = 0

    @property
    def is_balanced(self) -> bool:
        """Whether all strings and brackets are closed."""
        return not self._depth and not self._in_string

    def read(self, text: str) -> bool:
        """Process the next text of the answer; return whether the answer may still consist only of a call."""
        if self.name:
            return all(map(self._read, text))
        self._head += text
        found = match_at(self.pattern, self._head, 0)
        named = _NAMED.match(self._head)
        if found is None or (named is not None and not self._accepts(named["name"])):
            return False
        if found.partial:
            return len(self._head) <= _MAX_HEAD
        self.name, self.start = found["name"], found.start("body")
        self._is_fenced = (found["mark"] or "").startswith("`")
        return found.end() <= _MAX_HEAD and all(map(self._read, self._head[self.start :]))

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
            return self._is_fenced
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


class BrokenCalls(TextBuffer[Parser]):
    """Wraps ``inner``, and holds back up to ``limit`` characters of an answer that may be a broken call."""

    def __init__(self, inner: Parser, plan: Plan, judge: Judge, limit: int) -> None:
        super().__init__(inner)
        self._plan = plan
        self._judge = judge
        self._left = limit
        self._call = SoleCall(_FENCE, judge.toolbox.offers)

    def finish(self, *, cut: bool = False) -> Sequence[Segment | BrokenCall]:
        """Return the remaining segments at the end of the text. An answer that consists of a call becomes a
        ``BrokenCall``.
        """
        was_broken = bool(self._held)
        segments = self._inner.finish(cut=cut)
        if self._is_over or (cut and not was_broken):
            return segments
        passed = self._take(segments)
        if not self._held or not self._call.name:
            return [*passed, *self.release()]
        raw = "".join(self._held)
        self._held = []
        return [*passed, BrokenCall(raw, self._refused(raw))]

    def _holds(self, text: str) -> bool | None:
        """Return whether the answer may still consist only of a call, or None if only whitespace has arrived."""
        if not self._held and text.isspace():
            return None
        self._left -= len(text)
        return self._left >= 0 and self._call.read(text)

    def _refused(self, raw: str) -> Rejected | Violation | None:
        body = _CLOSING_MARK.sub("", raw[self._call.start :])
        # Brackets that the model left open are not added, since nothing indicates that the call was complete.
        block = Block("json", "", body, "\n" if self._call.is_balanced else "")
        if self._judge.answer_format is not None and self._judge.answer_format.is_answer(body):
            return None
        as_strict = tuple(replace(tool, strict=True) for tool in self._plan.tools)
        for plan, reasons in ((self._plan, _FAULTS), (replace(self._plan, tools=as_strict), (SCHEMA_MISMATCH,))):
            # The report treats the answer as text, so these verdicts are not counted.
            for verdict in Judge(plan, Report()).block(block):
                if not isinstance(verdict, JudgedCall) and verdict.reason in reasons and verdict.expected:
                    return verdict
        return None


class UndeclaredCall:
    """Withholds an answer while it may consist only of an undeclared call. ``is_declared``: returns whether a name
    refers to a tool of the client.

    ``retry``: the retry at the end of the answer, or None if the answer passes. ``is_over``: whether no more text is
    withheld.
    """

    def __init__(self, is_declared: Callable[[str], bool]) -> None:
        self._call = SoleCall(_ANY_MARK, lambda name: not is_declared(name))
        self._held: list[TextDelta] = []
        self._left = _MAX_CHARS
        self.retry: Retry | None = None
        self.is_over = False

    @property
    def is_holding(self) -> bool:
        """Whether text is withheld."""
        return bool(self._held)

    def take(self, events: Iterable[ClientEvent]) -> list[ClientEvent]:
        """Process events of the answer, and return the events that pass."""
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
        self._left -= len(text)
        return self._left >= 0 and self._call.read(text)

    def _retry(self, end: Ended) -> Retry | None:
        """Return the retry for the complete answer, or None if the answer is text."""
        text = "".join(event.text for event in self._held)
        # Small models forget brackets, so the last bracket need not match the first.
        is_whole = text.rstrip("` \t\r\n").endswith(("}", "]"))
        if not self._call.name or not is_whole or end.reasons != {0: "stop"}:
            return None
        fault = Fault(SECOND_OPINION, "an answer in plain text", self._call.name)
        return Retry(fault, text, (*self._held, Ended(end.reasons)), end.usage)


# Number of characters that distinguish a restart from a continuation: enough for a tag, or for a brace and a key.
_MAX_REPEATED = 16


class Continuation(ParserWrapper[Parser, list[str]]):
    """Wraps ``inner``, and first feeds it ``partial_call``, a call that was cut off in an earlier round.

    A model that is asked to continue a call either continues it or starts over. It has started over if its first
    visible characters match the beginning of the call; text is held back while this is undecided. A continuation
    resumes at the exact character, because whitespace at the boundary may belong to a string.
    """

    def __init__(self, inner: Parser, partial_call: str) -> None:
        super().__init__(inner, [partial_call])
        bare = partial_call.lstrip()
        # A model that starts over may write different whitespace after the tag.
        tag = bare[: bare.find(">") + 1] if bare.startswith("<") else ""
        self._head = tag or bare[:_MAX_REPEATED]  # The beginning of the text if the model starts over.

    @property
    def open_size(self) -> int:
        """Number of characters of the open block received so far, including those from the earlier round."""
        return sum(map(len, self._held)) or self._inner.open_size

    def feed(self, text: str) -> Sequence[Segment]:
        """Return the segments that ``text`` completes."""
        if not self._held:
            return self._inner.feed(text)
        self._held.append(text)
        written = "".join(self._held[1:])
        visible = written.lstrip()
        if len(visible) < len(self._head) and self._head.startswith(visible):
            return []
        whole = written if visible.startswith(self._head) else "".join(self._held)
        self._held = []
        return self._inner.feed(whole)

    def release(self) -> Sequence[Segment]:
        """Return the segments that ``inner`` has held back because the answer might contain only text."""
        return self._inner.release()

    def finish(self, *, cut: bool = False) -> Sequence[Segment | BrokenCall]:
        """Return the remaining segments at the end of the text. An undecided answer counts as a continuation."""
        held, self._held = self._held, []
        segments = self._inner.feed("".join(held)) if held else []
        return [*segments, *self._inner.finish(cut=cut)]
