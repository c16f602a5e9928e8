"""Which faults a model is asked to mend, and which of its own words it is shown then.

1. Only what was held back can be asked for again: text that was emitted and calls that were announced stand. So a fault
   ends the choice where it is, and a later round continues from there. No round follows an announced call that broke:
   its client must not run what comes behind it.
2. A verdict is a fault if it says what the call would have needed. A block that talks about the syntax says nothing.
3. A call that the length limit cut off is not a mistake: the model is asked to continue it. One that the model itself
   left open is broken; so is an answer that consists of an untagged call which cannot be made (``broken_call``).
4. An answer without the call that it had to hold, and an empty one after a tool's output, are faults of the whole
   answer; all that was emitted of it stands.
5. A call to ``find_tools``, our own tool, is a question from the model: the next round answers it.
6. The model is stopped at a fault in its text, and what it would have written behind it is never read. So a caller that
   does not ask again emits ``otherwise``, what the fault becomes if nobody may ask, and the answer ends there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from toolsimlib.errors import ApiError
from toolsimlib.events import (
    ClientEvent,
    Failed,
    FinishReason,
    HostedEvent,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
)
from toolsimlib.plan import FIND_TOOLS, Plan
from toolsimlib.response.pieces import BrokenCall, Piece
from toolsimlib.response.speech import Gap
from toolsimlib.response.verdict import (
    ARGUMENTS_TOO_LARGE,
    MALFORMED_JSON,
    MASKED_TOOL,
    SCHEMA_MISMATCH,
    UNKNOWN_TOOL,
    Call,
    Rejected,
    Verdict,
    Violation,
)

WHOLE = "a whole call, up to its closing tag"
CUT_OFF = "CALL_CUT_OFF"
NO_CALL = "NO_CALL"
EMPTY_ANSWER = "EMPTY_ANSWER"
SECOND_OPINION = "SECOND_OPINION"
"""A call that the model itself does not approve of, when it is asked about it (``loop/opinion.py``)."""
NO_ROUND_LEFT = "no_round_left"

CALL_FAULTS = frozenset(
    {SCHEMA_MISMATCH, MALFORMED_JSON, UNKNOWN_TOOL, MASKED_TOOL, ARGUMENTS_TOO_LARGE, CUT_OFF, NO_CALL}
)
"""What is wrong with calls."""

_MAX_WORDS = 65_536
"""Characters that are stored of an answer: a model that wrote more is not helped by seeing all of it."""

_SLOT = re.compile(r":\s*(<[A-Za-z_][^<>{}\"\n]{0,63}>)\s*[,}\]]")
"""A placeholder, as the catalogue and the manifest show it in place of a value: small models copy it."""

_CALL_START = re.compile(r"\s*<[A-Za-z_][A-Za-z0-9_.-]*>\s*[\[{]")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the model is to be asked again. ``expected``: what a call would have needed.

    ``begun``: the call as far as it got before the length limit, "" if the model is to start over. ``arguments``: of a
    call to ``find_tools``. ``otherwise``: what is emitted if nobody asks, without the end for the reason ``finish``,
    which follows unless it is a failure.
    """

    reason: str
    expected: str = ""
    name: str | None = None
    begun: str = ""
    arguments: str = ""
    otherwise: tuple[ClientEvent, ...] = ()
    finish: FinishReason = "stop"


@dataclass(frozen=True, slots=True)
class Retry:
    """An answer that broke off at a ``fault``. ``words``: all that the model wrote; ``usage``: what it took, if known.

    ``otherwise``: what is emitted if nobody asks, including the end, without the usage. Whether that is the end of an
    answer with calls depends on the earlier rounds (``loop/merge.py``).
    """

    fault: Fault
    words: str
    otherwise: tuple[ClientEvent, ...]
    usage: Usage | None = None


class FaultFinder:
    """Finds the fault of one choice, if there is any; stores its words if there may be one."""

    def __init__(self, plan: Plan) -> None:
        self._asks = plan.asks
        self._has_lookup = bool(plan.named)
        self._errors_as_text = plan.policy.strict_policy == "message"
        self._words: list[str] = []
        self._length = 0
        self._is_silent = True
        self.fault: Fault | None = None

    @property
    def words(self) -> str:
        """What the model wrote, cut to as much as anyone needs."""
        return "".join(self._words)[:_MAX_WORDS]

    @property
    def is_silent(self) -> bool:
        """Whether nothing but whitespace and reasoning has come so far."""
        return self._is_silent and not self.words.strip()

    def note(self, text: str) -> None:
        """Store a piece of the model's text."""
        if self._asks and self._length < _MAX_WORDS:
            self._words.append(text)
            self._length += len(text)

    def note_other(self, event: RefusalDelta | ReasoningDelta | HostedEvent) -> None:
        """Note what came beside the text."""
        if not isinstance(event, ReasoningDelta):
            self._is_silent = False

    def stop(self) -> None:
        """Find no fault from now on: the answer has failed for another reason."""
        self._asks = frozenset()

    def broken(self, verdict: Verdict, gap: Gap | None) -> bool:
        """Return whether a verdict is a fault.

        ``gap``, here and below: the whitespace before it, which goes with its text; None if text is dropped.
        """
        if isinstance(verdict, Call):
            return self._has_lookup and verdict.tool.name == FIND_TOOLS and self._look_up(verdict.arguments)
        if verdict.reason not in self._asks or not verdict.expected:
            return False
        otherwise: tuple[ClientEvent, ...]
        if isinstance(verdict, Rejected):
            otherwise = _text_events(gap, verdict.raw)
        elif self._errors_as_text:
            otherwise = (TextDelta(verdict.error.message),)
        else:
            otherwise = (Failed(verdict.error),)
        self._set_fault(verdict, otherwise)
        return True

    def _set_fault(
        self, verdict: Rejected | Violation, otherwise: tuple[ClientEvent, ...], finish: FinishReason = "stop"
    ) -> None:
        expected = verdict.expected
        # Why the JSON is malformed: the model has copied the notation of the catalogue.
        if verdict.reason == MALFORMED_JSON and (slot := _SLOT.search(verdict.raw)) is not None:
            expected += f"; {slot[1]} stands for a value that is to be filled in"
        self.fault = Fault(verdict.reason, expected, verdict.name, otherwise=otherwise, finish=finish)

    def _look_up(self, arguments: str) -> bool:
        error = ApiError("The model looks up tools, and there is no time left for it.", code=NO_ROUND_LEFT, status=504)
        self.fault = Fault(FIND_TOOLS, "tools", arguments=arguments, otherwise=(Failed(error),))
        return True

    def unfinished(self, pieces: Sequence[Piece | BrokenCall], reason: FinishReason, gap: Gap | None) -> bool:
        """Return whether a call without its end is a fault; ``pieces``: what the parser made of what it held back.

        An answer that is nothing but a broken untagged call is one too (see ``broken_call``).
        """
        if pieces and isinstance(pieces[-1], BrokenCall):
            return self._is_broken_call(pieces[-1], reason, gap)
        raw = "".join(piece for piece in pieces if isinstance(piece, str))
        if not raw or not all(isinstance(piece, str) for piece in pieces):
            return False
        cut_off = reason == "length" and CUT_OFF in self._asks
        broken = reason == "stop" and MALFORMED_JSON in self._asks and _CALL_START.match(raw) is not None
        if not cut_off and not broken:
            return False
        otherwise = _text_events(gap, raw)
        if cut_off:
            self.fault = Fault(CUT_OFF, WHOLE, begun=raw, otherwise=otherwise, finish="length")
        else:
            self.fault = Fault(MALFORMED_JSON, WHOLE, otherwise=otherwise)
        return True

    def _is_broken_call(self, answer: BrokenCall, reason: FinishReason, gap: Gap | None) -> bool:
        refused = answer.refused
        if refused is None or refused.reason not in self._asks or reason not in ("stop", "length"):
            return False
        self._set_fault(refused, _text_events(gap, answer.raw), reason)
        return True

    def missing(self, plan: Plan, finish: FinishReason) -> bool:
        """Return whether an answer without a call, which ended for the reason ``finish``, is a fault (rule 4)."""
        if plan.tool_choice.mode == "required" and NO_CALL in self._asks:
            self.fault = Fault(NO_CALL, "a call: this answer has to hold one", finish=finish)
        elif plan.after_outputs and self.is_silent and EMPTY_ANSWER in self._asks:
            self.fault = Fault(EMPTY_ANSWER, "an answer in words", finish=finish)
        return self.fault is not None


def _text_events(gap: Gap | None, raw: str) -> tuple[ClientEvent, ...]:
    text = gap.take() + raw if gap is not None else ""
    return (TextDelta(text),) if text else ()
