"""The outcome of a call: the client's item, and the model's output.

An error is plain text for the model, as an output. The server's own text is quoted in it, not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolsim.wire.mcp_items import error_text

TOO_LARGE = "OUTPUT_TOO_LARGE"
FAILED = "TOOL_FAILED"
UNREACHABLE = "SERVER_FAILED"
REFUSED = "REFUSED"
LIMIT = "LIMIT"

MAX_WORDS = 2_000
"""Maximum characters of an error that are repeated."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of a call. ``output``: its text, None if it failed; ``error``: in the API's shape, else None.

    ``code``: one of the codes above for a failure, "" for a result.
    """

    output: str | None
    error: Mapping[str, Any] | None = None
    code: str = ""
    found: tuple[Mapping[str, Any], ...] = ()
    """What a search has found (``wire/hosted_items.py``)."""

    @property
    def shown(self) -> str:
        """The output for the model."""
        return self.output if self.output is not None else error_text(self.error)


def failed(message: str, code: str = UNREACHABLE, number: int = -32000) -> ToolOutcome:
    """Return the outcome of a call that its server never answered, or that was never made."""
    return ToolOutcome(None, {"type": "mcp_protocol_error", "code": number, "message": message[:MAX_WORDS]}, code)
