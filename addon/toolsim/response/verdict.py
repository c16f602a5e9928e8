"""The verdicts of the judge. ``Choice`` applies them."""

from __future__ import annotations

from dataclasses import dataclass, field

from toolsim.core.errors import ApiError
from toolsim.core.plan import Tool

# The reasons why text is not a call. Some are also the codes of warnings about a call.
SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
MALFORMED_JSON = "MALFORMED_JSON"
UNKNOWN_TOOL = "UNKNOWN_TOOL"
MASKED_TOOL = "MASKED_TOOL"
ARGUMENTS_TOO_LARGE = "ARGUMENTS_TOO_LARGE"
# A tool's output contains this call, so the model is only quoting it (``outputs``). Also the code of a warning.
QUOTED_CALL = "QUOTED_CALL"
# An answer is not the requested JSON (``answer_format``). This is the code of a warning, and the reason for a retry.
ANSWER_MISMATCH = "ANSWER_MISMATCH"
# The API's error code for a violation.
INVALID_CALL = "invalid_tool_call"
# The API's error code for an answer that is not the requested JSON.
INVALID_ANSWER = "invalid_answer"
# STRUCTURED_CALL: a structured call cannot be passed on. CALL_AS_TEXT: the code of the warning if the client receives a
# description of such a call as text.
STRUCTURED_CALL = "STRUCTURED_CALL"
CALL_AS_TEXT = "CALL_AS_TEXT"
# The code of the repair of a misspelled tool name.
TOOL_NAME = "TOOL_NAME"


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """The verdict that the client receives a call. ``arguments``: JSON text of an object, or a custom tool's raw input.

    ``repairs``: the codes of the repairs that made the call valid.
    """

    tool: Tool
    arguments: str
    """JSON text of an object, or a custom tool's raw input."""
    repairs: tuple[str, ...] = field(default=(), compare=False)
    """The codes of the repairs that produced a valid call."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The verdict that the client receives text instead of a call.

    ``raw``: the text for the client, or "" for a structured call. ``reason``: the code of the reason. ``name``: the
    intended tool, or None if unknown. ``expected``: a description of the expected call, or "". ``is_unreadable``:
    whether the markers or the JSON are so malformed that the call could not be parsed.
    """

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
    """The verdict that a call violates the guarantee of a strict tool. It ends the turn with ``error`` (HTTP 422,
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
    """A valid untagged call. Its position in the answer determines whether the client receives it as a call.

    ``form``: the code of the call's form, which the report includes if the call is made. ``is_quoted``: whether a
    tool's output contains the call, in which case the call is text at any position.
    """

    call: JudgedCall
    form: str
    """The code of the call's form. The code, like the repairs, is reported only if the call is made."""
    is_quoted: bool = False
    """Whether a tool's output contains the call. Such a call is text in any position."""
