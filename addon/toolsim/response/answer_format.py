"""The JSON format that the client requests (``response_format``, ``text.format``) in addition to tools.

If the backend enforced the format, the model could not write calls. Therefore, the format is requested in the prompt
instead (``request/manifest.py``). The model's text can be a call or the requested answer. Often, it has no tag in
either case, and this table determines what it is:

| untagged text (see ``untagged``) that looks like a call   | the requested schema                           | result |
|----------------------------------------------------------|------------------------------------------------|--------|
| in call syntax, or JSON that needs repair                | any                                            | a call |
| any JSON                                                 | none (``json_object``), or not matched         | a call |
| an object that matches                                   | does not declare one of its keys               | a call |
| an object that matches                                   | declares all of its keys                       | text   |
| an array that matches                                    | explicitly allows an array                     | text   |
| an array that matches                                    | does not explicitly allow an array             | a call |

1. Calls are therefore still recognized if the schema accepts any object, or declares only ``name``. If the schema
   declares ``name`` and ``arguments``, for example because the answer is a plan of calls, the text is the answer.
2. An answer that violates the schema causes a warning. The answer is the complete text of a choice that ends normally
   without a call. A code fence around the answer is also a violation, since the client parses the unchanged text.
3. If a retry is allowed, the text is held back until the answer ends, or until its first call or other item
   (``HeldAnswer``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolsim.core.events import CallStarted, ClientEvent, Ended, TextDelta
from toolsim.core.plan import Tool
from toolsim.core.report import Report, entry
from toolsim.response.checker import SchemaChecker
from toolsim.response.parsed_call import read_value
from toolsim.response.segments import BrokenCall, Parser, Segment, TextBuffer
from toolsim.response.verdict import ANSWER_MISMATCH, Rejected
from toolsim.schema import CheckResult

EXPECTED = "an answer in the requested JSON format"

_ANSWER = "/answer"
"""The name under which the answer's schema is compiled. It contains a slash, so it cannot be the name of a tool."""

_MAX_CHARS = 1_000_000
"""Maximum length of an answer that is checked, in characters. Longer answers are accepted without a check."""

_NOT_JSON = CheckResult("it is not JSON", outline="not JSON")
_NO_OBJECT = CheckResult("it is not a JSON object", outline="not an object")


class AnswerFormat:
    """The answer format that the client requests. ``wanted``: the format, written like ``text.format`` of the Responses
    API.
    """

    def __init__(self, wanted: Mapping[str, Any], checker: SchemaChecker) -> None:
        schema = wanted.get("schema") if wanted.get("type") == "json_schema" else None
        self._needs_object = wanted.get("type") == "json_object"
        self._checker = checker
        self._answer = Tool(_ANSWER, _ANSWER, parameters=schema if isinstance(schema, dict) else None)

    def is_answer(self, text: str) -> bool:
        """Return whether the ``text`` of a possible call is the requested answer instead (see the table)."""
        schema = self._checker.schema(self._answer)
        read = read_value(text) if schema is not None else None
        if schema is None or read is None or not self._checker.conforms(schema, read.value):
            return False
        if isinstance(read.value, dict):
            return all(schema.property(key) is not None for key in read.value)
        return "array" in schema.types()

    def mismatch(self, text: str) -> CheckResult | None:
        """Return the mismatch between an answer and the requested format, or None if the answer matches."""
        if len(text) > _MAX_CHARS:
            return None
        read = read_value(text)
        if read is None:
            return _NOT_JSON
        if self._needs_object and not isinstance(read.value, dict):
            return _NO_OBJECT
        return self._checker.mismatch(self._answer, read.value)


class AnswerWatch:
    """Watches the events of an answer, and warns if the answer does not match the requested format (rule 2)."""

    def __init__(self, wanted: AnswerFormat, report: Report) -> None:
        self._wanted = wanted
        self._report = report
        self._texts: dict[int, list[str]] = {}  # The text deltas of each choice.
        self._calls: set[int] = set()  # Indexes of the choices with calls, including announced calls.

    def take(self, events: Iterable[ClientEvent]) -> None:
        """Process the answer's next events."""
        for event in events:
            match event:
                case TextDelta():
                    self._texts.setdefault(event.choice, []).append(event.text)
                case CallStarted():
                    self._calls.add(event.choice)
                case Ended():
                    for choice, segments in self._texts.items():
                        if event.reasons.get(choice) == "stop" and choice not in self._calls:
                            self._check("".join(segments))

    def _check(self, text: str) -> None:
        finding = self._wanted.mismatch(text) if text.strip() else None
        if finding is not None:
            self._report.warnings.append(ANSWER_MISMATCH)
            self._report.mismatches.append(entry("answer", finding.outline))


class HeldAnswer(TextBuffer[Parser]):
    """Wraps the parser ``inner``, and holds back the answer's text so that a retry can replace it (rule 3).

    ``limit``: maximum number of characters to hold back.
    """

    def __init__(self, inner: Parser, wanted: AnswerFormat, limit: int) -> None:
        super().__init__(inner)
        self._wanted = wanted
        self._left = limit

    def finish(self, *, cut: bool = False) -> Sequence[Segment | BrokenCall]:
        """Return the remaining segments at the end of the text. If the answer does not match the requested format, the
        last segment is a ``BrokenCall`` that contains the mismatch.
        """
        # A call that the model did not finish is reported separately, and has its own retry.
        has_open_call = self._inner.in_block if cut else self._inner.open_size > 0
        segments = self._inner.finish(cut=cut)
        if self._is_over:
            return segments
        passed = self._take([_without_fault(segment) for segment in segments])
        text = "".join(self._held)
        self._held = []
        if not text:
            return passed
        if has_open_call:
            return [*passed, text]
        finding = self._wanted.mismatch(text) if text.strip() and not cut else None
        if finding is None:
            return [*passed, BrokenCall(text, None)]
        expected = f"{EXPECTED}; {finding.mismatch}"
        return [*passed, BrokenCall(text, Rejected(text, ANSWER_MISMATCH, expected=expected))]

    def _holds(self, text: str) -> bool:
        self._left -= len(text)
        return self._left >= 0


def _without_fault(segment: Segment | BrokenCall) -> Segment | BrokenCall:
    """Return the text of a segment that was held back as a possible broken call but is not one; return any other
    segment unchanged.
    """
    return segment.raw if isinstance(segment, BrokenCall) and segment.refused is None else segment
