from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.http import Headers, Response
from toolsim.core.errors import ApiError
from toolsim.proxy.head import by_name, error_message, error_response, set_head


def test_error_response() -> None:
    """An error response contains the API's error object, and the headers that its status requires."""
    response = error_response(ApiError("no", "t", "c", "p", 503, retry_after=7), {"x-a": "b"})
    assert json.loads(response.content or b"") == {"error": {"message": "no", "type": "t", "param": "p", "code": "c"}}
    assert (response.headers["retry-after"], response.headers["x-a"]) == ("7", "b")
    assert error_response(ApiError("no", status=401)).headers["www-authenticate"] == "Bearer"


@given(
    st.lists(
        st.tuples(st.sampled_from([b"origin", b"Origin", b"VIA", b"\xe9", b"x"]), st.binary(max_size=3)), max_size=6
    )
)
def test_headers_by_name(fields: list[tuple[bytes, bytes]]) -> None:
    """For any bytes, and for repeated names in any case, ``by_name`` returns the same values as mitmproxy's lookup."""
    headers = Headers(fields)
    found = by_name(headers)
    assert found == {name.lower(): headers[name] for name in headers}


def test_backend_head_is_adapted_to_the_new_body() -> None:
    """Headers that describe the framing and encoding of the backend's body are removed, and all other headers are
    kept."""
    headers = {"content-encoding": "gzip", "content-length": "9", "x-a": "b", "content-type": "text/plain"}
    response = Response.make(200, b"", headers)
    response.headers["content-length"] = "9"
    response.http_version = "HTTP/1.0"
    set_head(response, "application/json")
    assert dict(response.headers) == {"x-a": "b", "content-type": "application/json"}
    assert response.http_version == "HTTP/1.1"


def test_stream_head_forbids_buffering() -> None:
    """The headers of a streamed response tell intermediate proxies not to buffer or compress it, regardless of the
    backend's headers.
    """
    response = Response.make(200, b"", {"content-type": "text/event-stream", "cache-control": "max-age=60"})
    set_head(response, "text/event-stream; charset=utf-8")
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.headers["x-accel-buffering"] == "no"


def test_message_of_a_backend_error_is_found() -> None:
    """The message of a backend's error is found in each common format. If the error has no message, the result is
    empty.
    """
    assert error_message(b'{"error": {"message": "Out of memory."}}') == "Out of memory."
    assert error_message(b'{"error": "gone"}') == "gone"
    for body in (b"", b"<html>", b"[]", b'{"a": 1}', b"\xff"):
        assert error_message(body) == ""
