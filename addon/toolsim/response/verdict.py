"""The decisions of the judge about a call, as values that a choice applies."""

from __future__ import annotations

from dataclasses import dataclass, field

from toolsim.core.errors import ApiError
from toolsim.core.plan import Tool

# Reasons why text is not a call, or why a call has a warning.
SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
MALFORMED_JSON = "MALFORMED_JSON"
UNKNOWN_TOOL = "UNKNOWN_TOOL"
MASKED_TOOL = "MASKED_TOOL"
ARGUMENTS_TOO_LARGE = "ARGUMENTS_TOO_LARGE"
# A warning, and the reason why a call remains text: a tool's output contains the call, so the model is only quoting it
# (``outputs``).
QUOTED_CALL = "QUOTED_CALL"
# A warning, and the reason for a retry: an answer is not the requested JSON (``answer_format``).
ANSWER_MISMATCH = "ANSWER_MISMATCH"
# The API's error code for a violation.
INVALID_CALL = "invalid_tool_call"
# The API's error code for an answer that is not the requested JSON.
INVALID_ANSWER = "invalid_answer"
# The reason why a structured call cannot be passed on, and the warning if the client receives the call as text.
STRUCTURED_CALL = "STRUCTURED_CALL"
CALL_AS_TEXT = "CALL_AS_TEXT"
# A repair code, in addition to the codes in `parsed_call`, `arguments` and `repair`.
TOOL_NAME = "TOOL_NAME"


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """A call for the client."""

    tool: Tool
    arguments: str
    """JSON text of an object, or a custom tool's raw input."""
    repairs: tuple[str, ...] = field(default=(), compare=False)
    """The codes of the repairs that produced a valid call."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The verdict that a possible call is not a call."""

    raw: str
    """The text for the client, or "" for a structured call."""
    reason: str
    """The code of the reason."""
    name: str | None = field(default=None, compare=False)
    """The intended tool, or None if unknown."""
    expected: str = field(default="", compare=False)
    """A description of the expected call, or ""."""
    is_unreadable: bool = field(default=False, compare=False)
    """Whether the markers or the JSON are beyond repair."""


@dataclass(frozen=True, slots=True)
class Violation:
    """The verdict that a call breaks a strict tool's guarantee. It ends the turn with ``error`` (HTTP 422,
    ``invalid_tool_call``).
    """

    error: ApiError
    reason: str
    raw: str = ""
    name: str | None = None
    expected: str = ""


Verdict = JudgedCall | Rejected | Violation


@dataclass(frozen=True, slots=True)
class Accepted:
    """A valid untagged call. It is made only if its position in the answer is suitable."""

    call: JudgedCall
    form: str
    """The code of the call's form. The code, like the repairs, is reported only if the call is made."""
    is_quoted: bool = False
    """Whether a tool's output contains the call. Such a call is text in any position."""
