"""Faults in a model's output that the model is asked to correct.

1. Only held-back text can be replaced, because the client has already received all other text and calls. Therefore, a
   fault ends the choice, and the next round continues after the text that the client has received. If an announced call
   ended as incomplete, there is no further round, because the client must not run any call after it.
2. A verdict is a fault only if it contains a description of the expected call. Verdicts on text that only describes the
   syntax of calls do not contain one.
3. If the length limit cut off a call, the model is asked to continue it. If the model itself left a call unfinished,
   the call is broken. The same applies to an answer that consists only of an invalid untagged call (``faults``).
4. An answer is also a fault if it lacks a required call, or if it is empty although it follows the output of a tool.
   The client keeps the text that it has received.
5. A call to ``find_tools``, which is toolsim's own tool, is treated like a fault. The next round contains the result.
6. When a fault is found, the model is stopped, and the rest of its text is not read. If the caller does not retry the
   model, the answer ends with ``otherwise``, the events for this case.
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
"""The code for a call that the model did not confirm when it was asked about the call (``rounds/opinion.py``)."""

CALL_FAULTS = frozenset(
    {SCHEMA_MISMATCH, MALFORMED_JSON, UNKNOWN_TOOL, MASKED_TOOL, ARGUMENTS_TOO_LARGE, CUT_OFF, NO_CALL}
)
"""The codes of faults in a call, including a missing call."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason for a retry."""

    reason: str
    expected: str = ""
    """A description of a valid call or answer."""
    name: str | None = None
    partial_call: str = ""
    """The beginning of a call that the model should continue, or "" if it should start over."""
    arguments: str = ""
    """The arguments of a call to ``find_tools``, or "" for any other fault."""
    otherwise: tuple[ClientEvent, ...] = ()
    """The events for the client if there is no retry. If these events do not end with a failure, the answer ends
    for the reason ``finish``.
    """
    finish: FinishReason = "stop"


def retry_error(fault: Fault) -> ApiError:
    """Return the error that ends a round before a retry."""
    message = f"The model is retried ({fault.reason}): expected {fault.expected}."
    return ApiError(message, "invalid_request_error", "retried", status=422)


@dataclass(frozen=True, slots=True)
class Retry:
    """A possible retry. The caller either requests it, or sends the events in ``otherwise`` instead."""

    fault: Fault
    words: str
    """The text that the model wrote before the ``fault``."""
    otherwise: tuple[ClientEvent, ...]
    """The events for the client if there is no retry. The last event is the end of the answer, without token counts."""
    usage: Usage | None = None
    """The token counts of the answer, if known."""
