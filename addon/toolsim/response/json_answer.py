"""Checks that a text answer is the JSON that the client requests, for requests without offered tools.

1. The text is held back until the answer ends. However, text that begins like JSON is sent to the client immediately if
   the backend was asked to enforce the format (``trusts``), since nearly all such answers are valid.
2. Reasoning in think tags before the JSON, and a code fence around it, are removed if the remaining text is the
   requested JSON. An answer that is already valid is never changed.
3. Any other answer that ends normally is a mismatch. The result is a ``Retry`` with an error in ``otherwise``. If the
   client has already received some of the text, a retry is not possible, and the answer ends with the error.
4. An answer that hit the token limit, failed, was refused by the model, or contains a call is not checked. Text before
   an item of the backend's own tools is not checked, either, because only the text after it is the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from toolsim.core.errors import ApiError
from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    Failed,
    KeepAlive,
    Opened,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from toolsim.core.report import Report, entry
from toolsim.response.answer_format import EXPECTED, AnswerFormat
from toolsim.response.retry import Fault, Retry
from toolsim.response.verdict import ANSWER_MISMATCH, INVALID_ANSWER

_MAX_WORDS = 65_536
"""Maximum length of an invalid answer that is shown to the model, in characters."""

_THOUGHT = re.compile(r"\s*<think(?:ing)?>.*?</think(?:ing)?>\s*", re.DOTALL)
_FENCED = re.compile(r"```[\w-]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
_STARTS_OF_JSON = frozenset('{["-0123456789tfn')


class JsonAnswer:
    """Checks the answer to a request for JSON, and holds back text that may be invalid.

    ``trusts``: whether the backend was asked to enforce the format (rule 1).
    """

    def __init__(self, wanted: AnswerFormat, report: Report, *, trusts: bool) -> None:
        self._wanted = wanted
        self._report = report
        self._trusts = trusts
        self._texts: list[str] = []  # The text deltas since the last item that is not text.
        self._passed = 0  # Number of deltas in ``_texts`` that have been emitted.
        self._is_exempt = False  # Whether the answer is exempt from the check (rule 4).
        self.starts: bool | None = None
        """Whether the text begins like JSON. None until its first visible character arrives."""
        self.is_over = False
        self.is_right = True
        """Whether the unchanged text is the requested JSON."""
        self.retry: Retry | None = None
        """The retry for an invalid answer, otherwise None. Its ``otherwise`` contains the error that the client
        receives if the model is not retried.
        """

    def take(self, events: Iterable[ClientEvent]) -> list[ClientEvent]:
        """Process the answer's next events, and return the events that can be sent to the client."""
        passed: list[ClientEvent] = []
        for event in events:
            match event:
                case TextDelta() if not self._is_exempt:
                    self._texts.append(event.text)
                    if self.starts is None and (first := event.text.lstrip()[:1]):
                        self.starts = first in _STARTS_OF_JSON
                    if self._trusts and self.starts:
                        passed += self._release()
                case Ended():
                    self.is_over = True
                    passed += self._ended(event)
                case Failed():
                    self.is_over = True
                    passed += [*self._release(), event]
                case Opened() | KeepAlive() | ReasoningDelta():
                    passed.append(event)
                case RefusalDelta() | CallStarted() | CallDelta() | CallEnded():
                    self._is_exempt = True
                    passed += [*self._release(), event]
                case _:
                    passed += [*self._release(), event]
                    if not isinstance(event, TextDelta):
                        self._texts, self._passed, self.starts = [], 0, None
        return passed

    def _release(self) -> Iterator[TextDelta]:
        text = "".join(self._texts[self._passed :])
        self._passed = len(self._texts)
        if text:
            yield TextDelta(text)

    def _ended(self, end: Ended) -> list[ClientEvent]:
        text = "".join(self._texts)
        if self._is_exempt or end.reasons.get(0, "stop") != "stop":
            return [*self._release(), end]
        finding = self._wanted.mismatch(text)
        if finding is None:
            return [*self._release(), end]
        self.is_right = False
        inside = self._unwrapped(text) if not self._passed else None
        if inside is not None:
            return [TextDelta(inside), end]
        self._report.mismatches.append(entry("answer", finding.outline))
        self._report.finish = None
        message = f"The model's answer is not the JSON that the request requires: {finding.mismatch}."
        failed = Failed(ApiError(message, code=INVALID_ANSWER, status=502))
        fault = Fault(ANSWER_MISMATCH, f"{EXPECTED}; {finding.mismatch}", otherwise=(failed,))
        self.retry = Retry(fault, text[:_MAX_WORDS], (failed,), end.usage)
        return []

    def _unwrapped(self, text: str) -> str | None:
        """Return the JSON inside an answer (rule 2), or None if the answer contains no such JSON."""
        thought = _THOUGHT.match(text)
        bare = text[thought.end() :] if thought is not None else text
        fenced = [found[1] for found in _FENCED.finditer(bare)]
        inside = fenced if len(fenced) == 1 else []
        return next((each for each in (bare, *inside) if self._wanted.mismatch(each) is None), None)
