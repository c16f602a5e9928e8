"""A request's body: read within its limit, and looked at once more if nobody could read it."""

from __future__ import annotations

import re

from mitmproxy.http import Request

from toolsimlib.errors import ApiError, BadRequest
from toolsimlib.proxy.decoding import TooLarge, decoded
from toolsimlib.wire.json_codec import parse_object

# A body that mentions tools cannot pass unread: its backend would never be told how to call them.
_MENTIONS_TOOLS = re.compile(rb'"(?:tools|functions|additional_tools|tool_calls|(?:custom_tool|function)_call)')


class Refused(Exception):
    """A request that cannot be served, for a reason other than its content."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def read_body(request: Request, limit: int, *, is_too_large: bool) -> bytes:
    """Return a request's body, decoded, of at most ``limit`` bytes; ``is_too_large``: that is known already.

    Raises Refused for a larger one, BadRequest for one that cannot be decoded.
    """
    try:
        if is_too_large:
            raise TooLarge(f"got more than {limit} bytes")
        return decoded(request, limit)
    except TooLarge as problem:
        message = f"The request body is too large: {problem} (toolsim_max_request_bytes)."
        raise Refused(ApiError(message, "invalid_request_error", "request_too_large", status=413)) from problem
    except ValueError as problem:
        raise BadRequest(f"The request body cannot be decoded: {problem}") from problem


def check_unread(body: bytes) -> None:
    """Raise BadRequest for a body that mentions tools, although it is no JSON that the rewriter reads."""
    if body.lstrip().startswith(b"{") and _MENTIONS_TOOLS.search(body) and not _can_be_read(body):
        raise BadRequest("The request body mentions tools, but is not JSON that can be read.")


def _can_be_read(body: bytes) -> bool:
    """Return whether a body is JSON that the rewriter reads: no NaN, no endless numbers, not nested without end."""

    def refuse(constant: str) -> float:
        raise ValueError(constant)

    return parse_object(body, parse_constant=refuse) is not None
