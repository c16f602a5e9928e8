"""Errors in the format of the client's API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ApiError:
    """The fields of an error in OpenAI's format, and the HTTP status to use if no stream has started.

    ``code`` is OpenAI's code if one exists; toolsim's own codes for backend errors begin with ``backend_``.
    ``retry_after`` is the value of the ``Retry-After`` header, in seconds.
    """

    message: str
    type: str = "server_error"
    code: str | None = None
    param: str | None = None
    status: int = 500
    retry_after: int | None = None

    def body(self) -> dict[str, Any]:
        """Return the error object with all four keys that OpenAI's schema requires."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


FAILED = ApiError("toolsim failed to handle this request; see its log for the reason.", code="internal_error")
"""The error for an exception in toolsim."""


class BadRequest(Exception):
    """Raised if a client's request cannot be served. ``error`` contains the reason and, in ``param``, the path of the
    invalid parameter.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.error = ApiError(message, type="invalid_request_error", code=code, param=param, status=400)
