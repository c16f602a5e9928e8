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
# The model is only quoting a call from a tool's output (``outputs``). Also the code of a warning.
QUOTED_CALL = "QUOTED_CALL"
# The code of the warning, and the reason for the retry, if an answer is not the requested JSON (``answer_format``).
ANSWER_MISMATCH = "ANSWER_MISMATCH"
# The API's error code for a violation.
INVALID_CALL = "invalid_tool_call"
# The API's error code for an answer that is not the requested JSON.
INVALID_ANSWER = "invalid_answer"
# STRUCTURED_CALL: a structured call cannot be passed on. CALL_AS_TEXT: the code of the warning if the client receives a
# description of such a call as text.
STRUCTURED_CALL = "STRUCTURED_CALL"
CALL_AS_TEXT = "CALL_AS_TEXT"
# The code for the repair of a misspelled tool name.
TOOL_NAME = "TOOL_NAME"


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """The verdict that the client receives a call."""

    tool: Tool
    arguments: str
    """The arguments as JSON, or the raw input for a custom tool."""
    repairs: tuple[str, ...] = field(default=(), compare=False)
    """The codes of the repairs that made the call valid."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The verdict that the client receives text instead of a call."""

    raw: str
    """The text for the client, or "" for a structured call."""
    reason: str
    """The reason for the rejection, as a code."""
    name: str | None = field(default=None, compare=False)
    """The name of the tool that the model meant, or None if unknown."""
    expected: str = field(default="", compare=False)
    """A description of the expected call, or ""."""
    is_unreadable: bool = field(default=False, compare=False)
    """Whether the markers or the JSON are so malformed that the call could not be parsed."""


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
    """A valid untagged call. Its position in the answer determines whether the client receives it as a call."""

    call: JudgedCall
    form: str
    """The code of the call form. The report includes this code if the call is made."""
    is_quoted: bool = False
    """Whether a tool's output contains the call. If so, the call is text at any position."""
