"""Small objects that a Response contains."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Literal

from toolsim.core.errors import ApiError
from toolsim.core.events import Usage
from toolsim.wire.json_codec import dump
from toolsim.wire.json_fields import count, mapping

# The error code for a failure that a retry cannot fix, such as a call that violates a tool's schema. With any other
# code, some clients retry a failed response.
_FINAL_CODE = "invalid_prompt"
# Error codes that the API's schema allows, and further codes that Codex supports.
_CODES = frozenset(
    {"server_error", "rate_limit_exceeded", "invalid_prompt", "data_residency_mismatch", "bio_policy", "cyber_policy"}
    | {"misalignment_policy_violation", "vector_store_timeout", "invalid_image", "invalid_image_format"}
    | {"invalid_base64_image", "invalid_image_url", "image_too_large", "image_too_small", "image_parse_error"}
    | {"image_content_policy_violation", "invalid_image_mode", "image_file_too_large", "unsupported_image_media_type"}
    | {"empty_image_file", "failed_to_download_image", "image_file_not_found"}
    | {"context_length_exceeded", "insufficient_quota", "usage_not_included", "server_is_overloaded", "slow_down"}
)


PART_OF: Mapping[str, Literal["summary", "reasoning_text"]] = {"summary": "summary", "text": "reasoning_text"}
"""Maps the kind of a reasoning delta to the kind of its content part."""
DELTA_OF = {"text": "output_text", "refusal": "refusal", "reasoning_text": "reasoning_text"}
"""Maps the kind of a content part to the name of its events."""


def failure(error: ApiError) -> dict[str, Any]:
    """Return the error of a final object, with one of the known codes, because some clients reject other codes."""
    return {"code": _code(error.code or "", error.type), "message": error.message}


def _code(code: str, kind: str) -> str:
    if code in _CODES:
        return code
    if code == "429" or "rate_limit" in f"{code} {kind}":
        return "rate_limit_exceeded"
    # An invalid request remains invalid no matter how often it is sent.
    is_final = code == "invalid_tool_call" or (code.startswith("4") and len(code) == 3 and code.isdecimal())
    return _FINAL_CODE if is_final else "server_error"


def failed(response: Mapping[str, Any], error: ApiError) -> dict[str, Any]:
    """Return a Response with the status ``failed`` and the code ``server_error``. This code is only for errors that
    neither the model nor the request has caused.
    """
    fields = {"code": "server_error", "message": error.message}
    return {**response, "status": "failed", "error": fields, "completed_at": None}


def part_of(kind: Literal["text", "refusal", "summary", "reasoning_text"], text: str) -> dict[str, Any]:
    """Return a content part with the given text."""
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
    """Return the token counts, or null if they are unknown."""
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
    """Return a final object as JSON. ``items`` maps output indexes to the items that have already been serialized.

    A Response can have thousands of items, and serializing all of them again would block the event loop.
    """
    at = list(response).index("output")
    before = dict(islice(response.items(), at))
    after = dict(islice(response.items(), at + 1, None))
    output = ",".join(item for _, item in sorted(items.items()))
    return f'{dump(before)[:-1]},"output":[{output}],{dump(after)[1:]}'


def read_usage(usage: object) -> Usage | None:
    """Return the token counts that a backend reported, or None if it reported none."""
    if not isinstance(usage, dict):
        return None
    read, written = count(usage, "input_tokens"), count(usage, "output_tokens")
    return Usage(
        input_tokens=read,
        output_tokens=written,
        total_tokens=count(usage, "total_tokens") or read + written,
        cached_tokens=count(mapping(usage.get("input_tokens_details")), "cached_tokens"),
        reasoning_tokens=count(mapping(usage.get("output_tokens_details")), "reasoning_tokens"),
    )
