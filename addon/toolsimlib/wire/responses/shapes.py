"""Small objects inside a Response."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Literal

from toolsimlib.errors import ApiError
from toolsimlib.events import Usage
from toolsimlib.wire.json_codec import dump

# The one code of a failed response after which no client sends the request again: they should after a broken stream,
# and should not after a model that broke its tool's schema.
_FINAL_CODE = "invalid_prompt"


PART_OF: Mapping[str, Literal["summary", "reasoning_text"]] = {"summary": "summary", "text": "reasoning_text"}
"""By the kind of a delta of reasoning: the kind of its content part."""
DELTA_OF = {"text": "output_text", "refusal": "refusal", "reasoning_text": "reasoning_text"}
"""By the kind of a content part: what its events are called."""


def failure(error: ApiError) -> dict[str, Any]:
    """Return the error of a final object, whose codes are a closed set to some clients: ours are not in it."""
    code = _FINAL_CODE if error.code == "invalid_tool_call" else error.code
    is_ours = not code or code.startswith(("backend_", "response_"))
    return {"code": "server_error" if is_ours else code, "message": error.message}


def failed(response: Mapping[str, Any], error: ApiError) -> dict[str, Any]:
    """Return a Response that says it failed after all, through no fault of the model or the request."""
    shown = {"code": "server_error", "message": error.message}
    return {**response, "status": "failed", "error": shown, "completed_at": None}


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


def response_json(response: Mapping[str, Any], items: Mapping[int, str]) -> str:
    """Return a final object as JSON; ``items``: its output, by place, each as it was written when it was over.

    There may be thousands of them: to write them all once more would hold up everyone else.
    """
    at = list(response).index("output")
    before, behind = dict(islice(response.items(), at)), dict(islice(response.items(), at + 1, None))
    output = ",".join(item for _, item in sorted(items.items()))
    return f'{dump(before)[:-1]},"output":[{output}],{dump(behind)[1:]}'
