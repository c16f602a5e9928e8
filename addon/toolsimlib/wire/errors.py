"""Error objects of both APIs, read and written."""

from __future__ import annotations

import json
from typing import Any

from toolsimlib.errors import ApiError


def read_error(error: object) -> ApiError:
    """Return a backend's error of any common shape: an object, flat or nested, or a bare text."""
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if isinstance(error, dict):
        return ApiError(
            _text(error.get("message")) or _text(error.get("detail")) or "The backend reported an error.",
            type=_text(error.get("type"), not_="error") or "server_error",
            code=_text(error.get("code")) or None,
            param=_text(error.get("param")) or None,
            status=502,
        )
    return ApiError(_text(error) or "The backend reported an error.", status=502)


def error_body(error: ApiError) -> bytes:
    """Return the JSON body of an HTTP error answer."""
    return json.dumps({"error": error.body()}, ensure_ascii=False).encode("utf-8", "replace")


def _text(value: Any, not_: str = "") -> str:
    """Return a JSON scalar as text; codes arrive as numbers too."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    text = str(value)
    return "" if text == not_ else text
