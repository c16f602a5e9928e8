"""Represents the outcome of a call to an MCP tool, with the output for the model or the error for the client.

1. The model sees an error as plain text. The server's own text is quoted, because it is not trusted.
2. The model sees a result as text, which consists of the text parts in order, with a note about the type and size of
   each other part. If there is no text, the structured content is used.
3. A result that exceeds the size limit is dropped instead of truncated, because half of a document would be misleading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolsim.wire.json_codec import dump
from toolsim.wire.mcp_items import error_text

TOO_LARGE = "OUTPUT_TOO_LARGE"
FAILED = "TOOL_FAILED"
UNREACHABLE = "SERVER_FAILED"
REFUSED = "REFUSED"
LIMIT = "LIMIT"

MAX_WORDS = 2_000
"""Maximum number of characters that are quoted from a server's error."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of a call.

    If the call succeeded, ``output`` is the text, ``error`` is None and ``code`` is "". If it failed, ``output`` is
    None, ``error`` is the error in the API's format, and ``code`` is one of this module's error codes.
    """

    output: str | None
    error: Mapping[str, Any] | None = None
    code: str = ""
    found: tuple[Mapping[str, Any], ...] = ()
    """The search results if the call was a web search (see ``wire/hosted_items.py``)."""

    @property
    def shown(self) -> str:
        """The output that the model sees."""
        return self.output if self.output is not None else error_text(self.error)


def failed(message: str, code: str = UNREACHABLE, number: int = -32000) -> ToolOutcome:
    """Return the outcome of a call that was not made, or that received no result."""
    return ToolOutcome(None, {"type": "mcp_protocol_error", "code": number, "message": message[:MAX_WORDS]}, code)


def outcome_of(parts: Iterable[Mapping[str, Any]], structured: Any, *, is_error: bool, limit: int) -> ToolOutcome:
    """Convert a server's result to an outcome.

    ``parts`` is the content of the result in wire format, and ``limit`` is the maximum size of the text in bytes.
    """
    texts = [_text(part) for part in parts]
    if not texts and structured is not None:
        texts = [dump(structured)]
    text = "\n".join(texts)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        return failed(f"The tool's output has {size} bytes, expected at most {limit}.", TOO_LARGE)
    if is_error:
        content = [{"type": "text", "text": text[:MAX_WORDS]}]
        return ToolOutcome(None, {"type": "mcp_tool_execution_error", "content": content}, FAILED)
    return ToolOutcome(text)


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
