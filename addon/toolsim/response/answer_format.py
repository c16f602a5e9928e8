"""The JSON format that the client demands (``response_format``, ``text.format``) in addition to tools.

A backend that enforced it could never write a call, so the prompt asks for it (``request/manifest.py``). The model's
text may be a call or the answer, and often neither has a tag:

| an untagged form (see ``untagged``) that is a call       | and the demanded schema                        | is     |
|----------------------------------------------------------|------------------------------------------------|--------|
| in a programmer's syntax, or JSON that has to be repaired | any                                            | a call |
| any JSON                                                 | none (``json_object``), or it does not fit     | a call |
| an object that fits                                      | leaves room for one of its keys, undeclared    | a call |
| an object that fits                                      | declares each of its keys                      | text   |
| an array that fits                                       | says that it takes an array                    | text   |
| an array that fits                                       | does not                                       | a call |

1. So a schema that takes any object, or one with ``name`` alone, does not hide calls; one that asks for ``name`` and
   ``arguments``, as a plan of calls would, gets its answer.
2. An answer that breaks the schema gets a warning. The answer is all the text of a choice that ends by itself without a
   call; a code fence around it breaks the schema, too, since the client parses the text as it is.
3. If the model may be retried (``HeldAnswer``), the text is held back to its end, or to the first call or item.
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

EXPECTED = "an answer in the JSON that was demanded"

_ANSWER = "/answer"
"""The name under which the answer's schema is compiled: no tool has a slash in its name."""

_MAX_CHARS = 1_000_000
"""Maximum length of an answer that is checked."""

_NOT_JSON = CheckResult("it is not JSON", outline="not JSON")
_NO_OBJECT = CheckResult("it is not a JSON object", outline="not an object")


class AnswerFormat:
    """The demanded format. ``wanted``: the flat ``text.format``."""

    def __init__(self, wanted: Mapping[str, Any], checker: SchemaChecker) -> None:
        schema = wanted.get("schema") if wanted.get("type") == "json_schema" else None
        self._needs_object = wanted.get("type") == "json_object"
        self._checker = checker
        self._answer = Tool(_ANSWER, _ANSWER, parameters=schema if isinstance(schema, dict) else None)

    def is_answer(self, text: str) -> bool:
        """Return whether the ``text`` of a form that may be a call is the demanded answer (see the table)."""
        schema = self._checker.schema(self._answer)
        read = read_value(text) if schema is not None else None
        if schema is None or read is None or not self._checker.conforms(schema, read.value):
            return False
        if isinstance(read.value, dict):
            return all(schema.property(key) is not None for key in read.value)
        return "array" in schema.types()

    def mismatch(self, text: str) -> CheckResult | None:
        """Return why an answer does not have the demanded format, None if it does."""
        if len(text) > _MAX_CHARS:
            return None
        read = read_value(text)
        if read is None:
            return _NOT_JSON
        if self._needs_object and not isinstance(read.value, dict):
            return _NO_OBJECT
        return self._checker.mismatch(self._answer, read.value)


class AnswerWatch:
    """Warns of answers without the demanded format (rule 2), given the client's events."""

    def __init__(self, wanted: AnswerFormat, report: Report) -> None:
        self._wanted = wanted
        self._report = report
        self._texts: dict[int, list[str]] = {}  # The pieces of the text of each choice.
        self._calls: set[int] = set()  # The choices with calls, announced ones included.

    def take(self, events: Iterable[ClientEvent]) -> None:
        """Process events of an answer, in order."""
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
    """Wraps the parser ``inner``, and holds the answer back (rule 3). Used like ``inner``; ``limit`` in characters."""

    def __init__(self, inner: Parser, wanted: AnswerFormat, limit: int) -> None:
        super().__init__(inner)
        self._wanted = wanted
        self._left = limit

    def finish(self, *, cut: bool = False) -> Sequence[Segment | BrokenCall]:
        """Return what is left at the end of the text; an answer that is not as demanded says so."""
        # An open call is another fault, with a retry of its own.
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
    """Return the text of a segment that was held back as a call but is none."""
    return segment.raw if isinstance(segment, BrokenCall) and segment.refused is None else segment
