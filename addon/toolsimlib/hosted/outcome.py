"""The outcome of a call: what the client reads in its item, and what the model is shown.

1. A result is text: its text parts, one after another; other parts are named with their kind and size; structured
   content counts if there is no text.
2. A result beyond the limit is dropped: half of a document is another document.
3. The model gets an error in words, as an output. A server's own words are quoted in it, not trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolsimlib.wire.json_codec import dump
from toolsimlib.wire.mcp_items import error_text

TOO_LARGE = "OUTPUT_TOO_LARGE"
FAILED = "TOOL_FAILED"
UNREACHABLE = "SERVER_FAILED"
REFUSED = "REFUSED"
LIMIT = "LIMIT"

_MAX_WORDS = 2_000
"""How many characters of an error are repeated."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call. ``output``: its text, None if it failed; ``error``: in the API's shape, else None.

    ``code``: one of the codes above for a failure, "" for a result.
    """

    output: str | None
    error: Mapping[str, Any] | None = None
    code: str = ""

    @property
    def shown(self) -> str:
        """What the model is shown."""
        return self.output if self.output is not None else error_text(self.error)


def failed(message: str, code: str = UNREACHABLE, number: int = -32000) -> Outcome:
    """Return the outcome of a call that its server never answered, or that was never made."""
    return Outcome(None, {"type": "mcp_protocol_error", "code": number, "message": message[:_MAX_WORDS]}, code)


def result(parts: Iterable[Mapping[str, Any]], structured: Any, *, is_error: bool, limit: int) -> Outcome:
    """Return the outcome of a server's result: its content ``parts`` in wire format; ``limit``: bytes of text."""
    texts = [_text(part) for part in parts]
    if not texts and structured is not None:
        texts = [dump(structured)]
    text = "\n".join(texts)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        return failed(f"The tool's output has {size} bytes, expected at most {limit}.", TOO_LARGE)
    if is_error:
        content = [{"type": "text", "text": text[:_MAX_WORDS]}]
        return Outcome(None, {"type": "mcp_tool_execution_error", "content": content}, FAILED)
    return Outcome(text)


def _text(part: Mapping[str, Any]) -> str:
    resource = part.get("resource")
    content = resource if isinstance(resource, Mapping) else part
    if isinstance(text := content.get("text"), str):
        return text
    if isinstance(uri := part.get("uri"), str):
        return f"[resource {uri}]"
    data = content.get("data", content.get("blob"))
    size = len(data) * 3 // 4 if isinstance(data, str) else 0
    return f"[{str(part.get('type'))[:40]} {str(content.get('mimeType', ''))[:80]}, {size} bytes]"
