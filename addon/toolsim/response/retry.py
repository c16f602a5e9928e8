"""Faults in a model's output that the model is asked to correct.

1. Only held-back text can be replaced: emitted text and announced calls are final. A fault therefore ends the choice at
   that point, and a later round continues from there. No round follows an announced call that broke, because the client
   must not run any call after such a call.
2. A verdict is a fault if it has a description of the expected call. The verdict on a block that only describes the
   syntax has no such description.
3. A call that the length limit cut off is not a mistake: the model is asked to continue it. A call that the model
   itself left unfinished is broken, as is an answer that consists of an untagged call that cannot be made (``faults``).
4. An answer that lacks a required call, or is empty after a tool's output, is itself a fault. All emitted text
   remains.
5. A call to ``find_tools``, toolsim's own tool, is a question from the model, which the next round answers.
6. The model is stopped at a fault in its text, and the remaining text is never read. A caller that does not retry
   therefore emits ``otherwise``, the outcome without a retry, and the answer ends there.
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
"""The fault of a call that the model disowns when asked about it (``rounds/opinion.py``)."""

CALL_FAULTS = frozenset(
    {SCHEMA_MISMATCH, MALFORMED_JSON, UNKNOWN_TOOL, MASKED_TOOL, ARGUMENTS_TOO_LARGE, CUT_OFF, NO_CALL}
)
"""The faults that concern a call."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason for a retry."""

    reason: str
    expected: str = ""
    """A description of a valid call."""
    name: str | None = None
    partial_call: str = ""
    """The call up to the length limit, or "" if the model is to start over."""
    arguments: str = ""
    """The arguments of a call to ``find_tools``."""
    otherwise: tuple[ClientEvent, ...] = ()
    """The events to emit without a retry. They are followed by an end with the reason ``finish``, unless they end with
    a failure.
    """
    finish: FinishReason = "stop"


def retry_error(fault: Fault) -> ApiError:
    """Return the error that ends a round before a retry."""
    message = f"The model is retried ({fault.reason}): expected {fault.expected}."
    return ApiError(message, "invalid_request_error", "retried", status=422)


@dataclass(frozen=True, slots=True)
class Retry:
    """An answer that ended at a ``fault``."""

    fault: Fault
    words: str
    """The model's text."""
    otherwise: tuple[ClientEvent, ...]
    """The events to emit without a retry, including the end but not the usage. The earlier rounds determine whether the
    answer ends as an answer with calls (``rounds/merge.py``).
    """
    usage: Usage | None = None
    """The token counts, if known."""
