"""Finds answers that consist of one untagged call that is invalid, so that the model can be asked to correct it.

The module also joins a call that was cut off to its continuation in the next round (``Continuation``).

``untagged`` finds valid calls and treats all other output as text. However, an answer was intended as a call if it
contains only the following text:

    answer := mark? "["? {"name": "…", "arguments": …      in any spelling of these keys (``call_keys``)
    mark   := a tag, or the line that opens a code fence

1. The answer is treated as text as soon as other text follows the closing bracket, ``...`` replaces a part of the call,
   or the backend sends anything other than text. In these cases, the model describes a call or makes another call.
2. A call that was cut off by the length limit is not a fault if it is valid so far, because the model can continue it.
3. Text is held back only if a retry is allowed. The result does not depend on how the text is split.

``BrokenCalls`` holds back a call to an offered tool. When the call is complete, it is judged as if it were tagged and
its tool were strict. The call is a fault if it cannot be parsed or does not match the tool's schema.

``UndeclaredCall`` holds back a call to a tool that does not exist. For example, a small model that is offered tools
sometimes answers a greeting with ``{"name": "greet", "arguments": {…}}``. The client cannot run such a call, so it
would receive the JSON as text. If the model is retried without tools, it answers in plain text. Therefore, the result
is a ``Retry`` with the unchanged answer in ``otherwise``. Only the first text of an answer, apart from reasoning, can
be such a call.
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
    """Return whether ``text`` begins with a tag and JSON (``<tool_call>{``), like the beginning of a call."""
    return _CALL_START.match(text) is not None


class SoleCall:
    """Checks whether an answer consists only of a call. ``accepts``: returns whether a tool's name is acceptable.

    ``mark``: a pattern for text that can precede the JSON, such as a tag. ``name``: the tool's name, or "" until the
    name and the key of the arguments have been read.
    """

    def __init__(self, mark: str, accepts: Callable[[str], bool]) -> None:
        self.pattern = rf"\s*+(?P<mark>{mark})?(?P<body>\[?\s*+{HEAD}[\s,]*+{ARGUMENTS})"
        self._accepts = accepts
        self._head = ""  # The text received before the arguments begin.
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
        """Read the next chunk of the answer. Return whether the answer may still consist only of a call."""
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
    """Holds back an answer that may consist only of a broken call.

    ``inner``: the parser of the answer. ``limit``: maximum number of characters to hold back.
    """

    def __init__(self, inner: Parser, plan: Plan, judge: Judge, limit: int) -> None:
        super().__init__(inner)
        self._plan = plan
        self._judge = judge
        self._left = limit
        self._call = SoleCall(_FENCE, judge.toolbox.offers)

    def finish(self, *, cut: bool = False) -> Sequence[Segment | BrokenCall]:
        """Return the remaining segments at the end of the text. If the answer consists only of a call that ``inner``
        did not accept, its text becomes a ``BrokenCall``.
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
        """Return whether the answer may still consist only of a call. Returns None for whitespace before the first
        visible text.
        """
        if not self._held and text.isspace():
            return None
        self._left -= len(text)
        return self._left >= 0 and self._call.read(text)

    def _refused(self, raw: str) -> Rejected | Violation | None:
        body = _CLOSING_MARK.sub("", raw[self._call.start :])
        # Missing brackets are not added, because the call may be incomplete in other ways, too.
        block = Block("json", "", body, "\n" if self._call.is_balanced else "")
        if self._judge.answer_format is not None and self._judge.answer_format.is_answer(body):
            return None
        as_strict = tuple(replace(tool, strict=True) for tool in self._plan.tools)
        for plan, reasons in ((self._plan, _FAULTS), (replace(self._plan, tools=as_strict), (SCHEMA_MISMATCH,))):
            # The answer's report counts the call as text, so the verdicts go to a separate report.
            for verdict in Judge(plan, Report()).block(block):
                if not isinstance(verdict, JudgedCall) and verdict.reason in reasons and verdict.expected:
                    return verdict
        return None


class UndeclaredCall:
    """Holds back an answer while everything received so far could be a call to a tool that does not exist.

    ``is_declared``: returns whether a name refers to one of the client's tools. ``retry``: the retry for a complete
    answer that consists only of such a call; otherwise None. ``is_over``: whether the answer has been released, or
    replaced by the retry.
    """

    def __init__(self, is_declared: Callable[[str], bool]) -> None:
        self._call = SoleCall(_ANY_MARK, lambda name: not is_declared(name))
        self._held: list[TextDelta] = []
        self._left = _MAX_CHARS
        self.retry: Retry | None = None
        self.is_over = False

    @property
    def is_holding(self) -> bool:
        """Whether any text is held back."""
        return bool(self._held)

    def take(self, events: Iterable[ClientEvent]) -> list[ClientEvent]:
        """Process the answer's next events, and return the events that can be sent to the client."""
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
        """Return the retry if the complete answer is a call to an undeclared tool, or None if it is ordinary text."""
        text = "".join(event.text for event in self._held)
        # Small models forget brackets, so any closing bracket counts as the end of the call.
        is_whole = text.rstrip("` \t\r\n").endswith(("}", "]"))
        if not self._call.name or not is_whole or end.reasons != {0: "stop"}:
            return None
        fault = Fault(SECOND_OPINION, "an answer in plain text", self._call.name)
        return Retry(fault, text, (*self._held, Ended(end.reasons)), end.usage)


# Maximum number of characters that are compared to detect that the model has started the call over. This is enough for
# a tag, or for a brace and a key.
_MAX_REPEATED = 16


class Continuation(ParserWrapper[Parser, list[str]]):
    """Joins a call that was cut off in an earlier round (``partial_call``) with the text of this round, and passes the
    joined text to the parser ``inner``.

    A model that is asked to continue a call either continues it or starts over. It has started over if its first
    visible characters match the beginning of the call; text is held back until this is known. Whitespace at the
    beginning of a continuation is kept, because it may belong to a string.
    """

    def __init__(self, inner: Parser, partial_call: str) -> None:
        super().__init__(inner, [partial_call])
        bare = partial_call.lstrip()
        # If the model starts over, the whitespace between the tag and the JSON may differ.
        tag = bare[: bare.find(">") + 1] if bare.startswith("<") else ""
        self._head = tag or bare[:_MAX_REPEATED]  # The beginning of the text if the model starts over.

    @property
    def open_size(self) -> int:
        """Number of characters received so far of the block that is being read, including those from the earlier
        round.
        """
        return sum(map(len, self._held)) or self._inner.open_size

    def feed(self, text: str) -> Sequence[Segment]:
        """Read the next chunk of text, and return the segments that are now complete."""
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
        """Return the segments that ``inner`` has held back. Called when output other than text arrives."""
        return self._inner.release()

    def finish(self, *, cut: bool = False) -> Sequence[Segment | BrokenCall]:
        """Return the remaining segments at the end of the text. Text that could be either a continuation or a new start
        is treated as a continuation.
        """
        held, self._held = self._held, []
        segments = self._inner.feed("".join(held)) if held else []
        return [*segments, *self._inner.finish(cut=cut)]
