"""Our words to the model about what it wrote."""

from __future__ import annotations

from toolsimlib.request.record import error_record
from toolsimlib.response.retry import CUT_OFF, NO_CALL, Retry

_ANEW = "That call was not made. Write it again from its beginning, whole and corrected, and nothing else."
_GO_ON = (
    "Your answer was cut off inside a call. Go on with it from the very character at which it ends, and write nothing"
    " else."
)
_CALL = "Call a tool now, and write nothing else."
_DONE = " The calls before it were made: do not repeat them."

NOTHING = "(no answer)"
"""Stands for an answer without words: between two messages of the user, the record would join the first."""


def words_of(retry: Retry) -> str:
    """Return what the model wrote, as it is shown."""
    return retry.words if retry.words.strip() else NOTHING


def reply_to(retry: Retry, *, called: bool) -> str:
    """Return our words to the model; ``called``: there are valid calls."""
    fault = retry.fault
    instruction = {CUT_OFF: _GO_ON, NO_CALL: _CALL}.get(fault.reason, _ANEW)
    record = error_record(fault.reason, fault.name, fault.expected)
    return f"{record}\n{instruction}{_DONE if called and fault.reason != CUT_OFF else ''}"
