"""Faults that a model is asked to correct, and what it is shown of its own text.

1. Only text that was held back can be replaced: emitted text and announced calls are final. So a fault ends the choice
   at that point, and a later round continues from there. No round follows an announced call that broke: its client must
   not run any call after it.
2. A verdict is a fault if it says what the call would have needed. A block that talks about the syntax does not.
3. A call that the length limit cut off is not a mistake: the model is asked to continue it. One that the model itself
   left open is broken; so is an answer that consists of an untagged call which cannot be made (``faults``).
4. An answer without a demanded call, and an empty one after a tool's output, are faults of the entire answer; all
   emitted text remains.
5. A call to ``find_tools``, our own tool, is a question from the model: the next round answers it.
6. The model is stopped at a fault in its text, and the rest is never read. So a caller that does not retry emits
   ``otherwise``, the fault's form without a retry, and the answer ends there.
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
"""A call that the model rejects when asked about it (``rounds/opinion.py``)."""

CALL_FAULTS = frozenset(
    {SCHEMA_MISMATCH, MALFORMED_JSON, UNKNOWN_TOOL, MASKED_TOOL, ARGUMENTS_TOO_LARGE, CUT_OFF, NO_CALL}
)
"""Faults of calls."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason for a retry. ``expected``: what a call would have needed.

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
    """Return the error that ends a round before a retry."""
    message = f"The model is retried ({fault.reason}): expected {fault.expected}."
    return ApiError(message, "invalid_request_error", "retried", status=422)


@dataclass(frozen=True, slots=True)
class Retry:
    """An answer that ended at a ``fault``. ``words``: all text of the model; ``usage``: its token counts, if known.

    ``otherwise``: what is emitted without a retry, including the end, excluding the usage. Whether that is the end of
    an answer with calls depends on the earlier rounds (``rounds/merge.py``).
    """

    fault: Fault
    words: str
    otherwise: tuple[ClientEvent, ...]
    usage: Usage | None = None
