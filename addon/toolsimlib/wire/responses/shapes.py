"""Small objects inside a Response."""

from __future__ import annotations

from typing import Any, Literal

from toolsimlib.events import Usage

# The one code of a failed response after which no client sends the request again: they should after a broken stream,
# and should not after a model that broke its tool's schema.
_FINAL_CODE = "invalid_prompt"


def failed_code(code: str | None) -> str:
    """Return a code for the final object, whose codes are a closed set to some clients: ours are not in it."""
    if code == "invalid_tool_call":
        return _FINAL_CODE
    return code if code and not code.startswith(("backend_", "response_")) else "server_error"


def part_of(kind: Literal["text", "refusal", "summary", "reasoning_text"], text: str) -> dict[str, Any]:
    """Return a content part with its text."""
    match kind:
        case "text":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        case "refusal":
            return {"type": "refusal", "refusal": text}
        case "summary":
            return {"type": "summary_text", "text": text}
        case "reasoning_text":
            return {"type": "reasoning_text", "text": text}


def usage_of(usage: Usage | None) -> dict[str, Any] | None:
    """Return the counts, null while they are not known."""
    if usage is None:
        return None
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
