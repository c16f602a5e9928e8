"""Faults that a model is asked to correct, and what it is shown of its own text.

1. Only what was held back can be asked for again: text that was emitted and calls that were announced stand. So a fault
   ends the choice where it is, and a later round continues from there. No round follows an announced call that broke:
   its client must not run what comes after it.
2. A verdict is a fault if it says what the call would have needed. A block that talks about the syntax says nothing.
3. A call that the length limit cut off is not a mistake: the model is asked to continue it. One that the model itself
   left open is broken; so is an answer that consists of an untagged call which cannot be made (``faults``).
4. An answer without the call that it had to hold, and an empty one after a tool's output, are faults of the whole
   answer; all that was emitted of it stands.
5. A call to ``find_tools``, our own tool, is a question from the model: the next round answers it.
6. The model is stopped at a fault in its text, and what it would have written after it is never read. So a caller that
   does not ask again emits ``otherwise``, what the fault becomes if nobody may ask, and the answer ends there.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolsim.core.errors import ApiError
from toolsim.core.events import ClientEvent, FinishReason, Usage
from toolsim.response.verdict import (
    ARGUMENTS_TOO_LARGE,
    MALFORMED_JSON,
    MASKED_TOOL,
    SCHEMA_MISMATCH,
    UNKNOWN_TOOL,
)

CUT_OFF = "CALL_CUT_OFF"
NO_CALL = "NO_CALL"
EMPTY_ANSWER = "EMPTY_ANSWER"
SECOND_OPINION = "SECOND_OPINION"
"""A call that the model itself does not approve of, when it is asked about it (``rounds/opinion.py``)."""

CALL_FAULTS = frozenset(
    {SCHEMA_MISMATCH, MALFORMED_JSON, UNKNOWN_TOOL, MASKED_TOOL, ARGUMENTS_TOO_LARGE, CUT_OFF, NO_CALL}
)
"""What is wrong with calls."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the model is to be retried. ``expected``: what a call would have needed.

    ``partial_call``: the call as far as it got before the length limit, "" if the model is to start over.
    ``arguments``: of a call to ``find_tools``. ``otherwise``: what is emitted without a retry, apart from the end for
    the reason ``finish``, which follows unless it is a failure.
    """

    reason: str
    expected: str = ""
    name: str | None = None
    partial_call: str = ""
    arguments: str = ""
    otherwise: tuple[ClientEvent, ...] = ()
    finish: FinishReason = "stop"


def asked_again(fault: Fault) -> ApiError:
    """Return the error that ends a round after which the model is retried."""
    message = f"The model is asked again ({fault.reason}): expected {fault.expected}."
    return ApiError(message, "invalid_request_error", "retried", status=422)


@dataclass(frozen=True, slots=True)
class Retry:
    """An answer that broke off at a ``fault``. ``words``: all that the model wrote; ``usage``: what it took, if known.

    ``otherwise``: what is emitted without a retry, including the end, excluding the usage. Whether that is the end of
    an answer with calls depends on the earlier rounds (``rounds/merge.py``).
    """

    fault: Fault
    words: str
    otherwise: tuple[ClientEvent, ...]
    usage: Usage | None = None
