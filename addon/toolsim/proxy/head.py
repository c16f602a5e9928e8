"""Error responses, and the headers of rewritten answers."""

from __future__ import annotations

import json
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

# Headers that describe the framing and encoding of the backend's response. They do not apply to a rewritten answer.
_HOP_HEADERS = (b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"content-encoding")

# The HTTP statuses of responses without a body. Such responses cannot be streamed.
_WITHOUT_BODY = (204, 205)


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as a complete HTTP response in OpenAI's format."""
    response = Response.make(error.status, json.dumps({"error": error.body()}), {"content-type": "application/json"})
    if error.retry_after is not None:
        response.headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if error.status == 407:
        # This header requests the Basic scheme, because most programs support it. A Bearer token is also accepted.
        response.headers["proxy-authenticate"] = 'Basic realm="toolsim"'
    response.headers.update(headers or {})
    return response


def write_error(response: Response, client: Api, backend: Api) -> None:
    """Convert a backend's error to OpenAI's format, unless it has this format or the client uses the backend's API.

    An error about a prompt that is too long always receives the code ``context_length_exceeded`` and its status. For a
    client whose API has its own error format, only this status is set here.
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
    """Replace the client's key with an ``Authorization`` header.

    If ``authorization`` is "", only remove the key. If it is None, keep the key.
    """
    if authorization is None:
        return
    given = {"authorization": authorization} if authorization else {}
    change(headers, without=[name.encode() for name in KEY_HEADERS], given=given)


def by_name(headers: Headers) -> dict[str, str]:
    """Return all headers by lower-case name.

    Looking up several names in the result is faster than in ``headers``, where each lookup scans all headers.
    """
    found: dict[str, str] = {}
    for raw_name, raw in headers.fields:
        name, value = raw_name.lower().decode("utf-8", "surrogateescape"), raw.decode("utf-8", "surrogateescape")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def change(headers: Headers, *, without: Iterable[bytes], given: Mapping[str, str]) -> None:
    """Remove the headers in ``without`` (lower-case names) and set the headers in ``given``, in a single pass."""
    fields = [(name.encode(), value.encode()) for name, value in given.items()]
    gone = {*without, *(name for name, _ in fields)}
    headers.fields = (*(field for field in headers.fields if field[0].lower() not in gone), *fields)


def set_head(response: Response, content_type: str) -> None:
    """Adapt the headers of a backend's response to a rewritten answer with this content type."""
    buffering = UNBUFFERED if content_type.startswith("text/event-stream") else {}
    change(response.headers, without=_HOP_HEADERS, given={"content-type": content_type, **buffering})
    if response.http_version == "HTTP/1.0":
        response.http_version = "HTTP/1.1"


def is_event_stream(response: Response) -> bool:
    """Return whether a backend's response is a stream of events that can be read as it arrives."""
    if response.raw_content is not None or response.status_code in _WITHOUT_BODY:
        return False
    headers = by_name(response.headers)
    # A server might compress the stream although toolsim requests the identity encoding.
    is_plain = headers.get("content-encoding", "identity").strip().lower() == "identity"
    return is_plain and headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"


def response_error(response: Response) -> ApiError:
    """Return the error that an HTTP error response describes, including the response's status."""
    error = read_error(loaded((response.raw_content or b"").decode("utf-8", "replace")))
    return replace(error, status=response.status_code)


def error_message(body: bytes) -> str:
    """Return the message of a backend's error, or "" if it has no message."""
    message = read_error(loaded(body.decode("utf-8", "replace"))).message
    return message if message != NO_WORDS.message else ""


def for_backend(headers: Headers, client: Api, backend: Api) -> list[str]:
    """Remove the client's headers that the backend does not support. Return the features that those headers request."""
    dropped: list[str] = []
    for api in {client.name: client, backend.name: backend}.values():
        sent = by_name(headers)
        found = api.own_backend_headers(sent) if api is backend else api.other_backend_headers(sent)
        change(headers, without=[name.encode() for name in found.without], given=found.given)
        dropped += found.dropped
    return dropped
