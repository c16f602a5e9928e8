"""Converts a server's answer to the outcome of a call.

1. A result is text: its text parts, one after another; other parts are named with their kind and size; structured
   content counts if there is no text.
2. A result beyond the limit is dropped: half of a document is another document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolsim.mcp.outcome import FAILED, MAX_WORDS, TOO_LARGE, ToolOutcome, failed
from toolsim.wire.json_codec import dump


def result(parts: Iterable[Mapping[str, Any]], structured: Any, *, is_error: bool, limit: int) -> ToolOutcome:
    """Return the outcome of a server's result: its content ``parts`` in wire format; ``limit``: bytes of text."""
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
