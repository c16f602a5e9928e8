"""The outcome of a call: what the client reads in its item, and what the model is shown.

The model gets an error in words, as an output. A server's own words are quoted in it, not trusted.
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
"""How many characters of an error are repeated."""


@dataclass(frozen=True, slots=True)
class Outcome:
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
        """What the model is shown."""
        return self.output if self.output is not None else error_text(self.error)


def failed(message: str, code: str = UNREACHABLE, number: int = -32000) -> Outcome:
    """Return the outcome of a call that its server never answered, or that was never made."""
    return Outcome(None, {"type": "mcp_protocol_error", "code": number, "message": message[:MAX_WORDS]}, code)
