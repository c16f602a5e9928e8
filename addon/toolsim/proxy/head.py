"""Error responses, and the headers of rewritten answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mitmproxy.http import Headers, Response
from mitmproxy.net.http import status_codes

from toolsim.core.errors import ApiError
from toolsim.proxy.access import KEY_HEADERS
from toolsim.wire.api import Api
from toolsim.wire.errors import CONTEXT_EXCEEDED, NO_WORDS, error_body, read_error
from toolsim.wire.json_fields import loaded, mapping
from toolsim.wire.sse import UNBUFFERED

logger = logging.getLogger(__name__)

# Framing and encoding of the backend's own connection: they do not apply to the answer that is sent.
_HOP_HEADERS = (b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"content-encoding")

# Statuses whose answers have no body, so that there is nothing to stream.
_WITHOUT_BODY = (204, 205)


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as a complete HTTP response in the API's own format."""
    response = Response.make(error.status, json.dumps({"error": error.body()}), {"content-type": "application/json"})
    if error.retry_after is not None:
        response.headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if error.status == 407:
        # A scheme that programs can answer; Bearer is accepted too.
        response.headers["proxy-authenticate"] = 'Basic realm="toolsim"'
    response.headers.update(headers or {})
    return response


def write_error(response: Response, client: Api, backend: Api) -> None:
    """Write a backend's error in OpenAI's format, if it is of another API or says that the prompt is too long.

    One that has the format, with a message and for such a prompt the code, is unchanged. Clients of an API with its own
    errors get only the status here.
    """
    body = response.get_content(strict=False) or b""
    if not body:
        return
    document = loaded(body.decode("utf-8", "replace"))
    error = read_error(document if document is not None else body.decode("utf-8", "replace").strip()[:2_000])
    is_too_long = error.code == CONTEXT_EXCEEDED
    if is_too_long and response.status_code != error.status:
        response.status_code, response.reason = error.status, status_codes.RESPONSES[error.status]
    if client.has_own_errors:
        return
    found = mapping((document or {}).get("error"))
    is_own = document is not None and document.get("type") != "error" and isinstance(found.get("message"), str)
    if is_too_long:
        if is_own and found.get("code") == CONTEXT_EXCEEDED:
            return
    elif is_own or client is backend:
        return
    response.content = error_body(replace(error, status=response.status_code))
    response.headers["content-type"] = "application/json"


def authorize(headers: Headers, authorization: str | None) -> None:
    """Replace the client's key by ``Authorization``; "" removes it, and None leaves the client's headers unchanged."""
    if authorization is None:
        return
    given = {"authorization": authorization} if authorization else {}
    change(headers, without=[name.encode() for name in KEY_HEADERS], given=given)


def internal_error() -> ApiError:
    """Log the current exception, a bug in toolsim, and return the error for the client."""
    logger.exception("toolsim failed to rewrite an answer; please report this.")
    return ApiError("toolsim failed to rewrite the backend's answer.", code="internal_error")


def by_name(headers: Headers) -> dict[str, str]:
    """Return all headers by lower-case name, in one pass: mitmproxy scans all of them for each lookup."""
    found: dict[str, str] = {}
    for raw_name, raw in headers.fields:
        name, value = raw_name.lower().decode("utf-8", "surrogateescape"), raw.decode("utf-8", "surrogateescape")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def change(headers: Headers, *, without: Iterable[bytes], given: Mapping[str, str]) -> None:
    """Remove some headers, by lower-case name, and set others, also in one pass."""
    fields = [(name.encode(), value.encode()) for name, value in given.items()]
    gone = {*without, *(name for name, _ in fields)}
    headers.fields = (*(field for field in headers.fields if field[0].lower() not in gone), *fields)


def set_head(response: Response, content_type: str) -> None:
    """Turn a backend's headers into those of a rewritten answer of this type."""
    buffering = UNBUFFERED if content_type.startswith("text/event-stream") else {}
    change(response.headers, without=_HOP_HEADERS, given={"content-type": content_type, **buffering})
    if response.http_version == "HTTP/1.0":
        response.http_version = "HTTP/1.1"


def is_event_stream(response: Response) -> bool:
    """Return whether a backend's answer is a stream of events that can be read in pieces."""
    if response.raw_content is not None or response.status_code in _WITHOUT_BODY:
        return False
    headers = by_name(response.headers)
    # A stream compressed despite the request for identity cannot be read in pieces.
    is_plain = headers.get("content-encoding", "identity").strip().lower() == "identity"
    return is_plain and headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"


def response_error(response: Response) -> ApiError:
    """Return the error described by an HTTP error response, with its status."""
    error = read_error(loaded((response.raw_content or b"").decode("utf-8", "replace")))
    return replace(error, status=response.status_code)


def error_message(body: bytes) -> str:
    """Return the message of a backend's error, "" if it has none."""
    message = read_error(loaded(body.decode("utf-8", "replace"))).message
    return message if message != NO_WORDS.message else ""


def for_backend(headers: Headers, client: Api, backend: Api) -> list[str]:
    """Change a client's headers to those that its backend supports; return the features requested by the others."""
    dropped: list[str] = []
    for api in {client.name: client, backend.name: backend}.values():
        sent = by_name(headers)
        found = api.own_backend_headers(sent) if api is backend else api.other_backend_headers(sent)
        change(headers, without=[name.encode() for name in found.without], given=found.given)
        dropped += found.dropped
    return dropped
