from __future__ import annotations

import gzip

import pytest
from mitmproxy.test import tutils
from toolsimlib.errors import BadRequest
from toolsimlib.proxy.body import Refused, check_unread, read_body


def test_a_body_is_read_decoded() -> None:
    """Up to its limit, which counts what comes out."""
    packed = tutils.treq(content=gzip.compress(b"x" * 100), headers=((b"content-encoding", b"gzip"),))
    assert read_body(packed, 100, is_too_large=False) == b"x" * 100
    with pytest.raises(Refused) as refused:
        read_body(packed, 99, is_too_large=False)
    assert refused.value.error.status == 413


def test_what_was_dropped_is_too_large() -> None:
    """A body that was not kept is refused whatever is left of it."""
    with pytest.raises(Refused, match="got more than 7 bytes"):
        read_body(tutils.treq(content=b""), 7, is_too_large=True)


def test_what_cannot_be_decoded() -> None:
    """Is the client's mistake."""
    with pytest.raises(BadRequest):
        read_body(tutils.treq(content=b"x", headers=((b"content-encoding", b"gzip"),)), 100, is_too_large=False)


@pytest.mark.parametrize("body", [b"plain", b'{"tools": []}', b'{"x": NaN}', b'["tools", NaN]'])
def test_bodies_that_pass(body: bytes) -> None:
    """No object, nothing about tools, or JSON that was read."""
    check_unread(body)


@pytest.mark.parametrize("body", [b'{"tools": [NaN]}', b'{"tools": [', b' {"tool_calls": -Infinity}'])
def test_tools_that_nobody_can_read(body: bytes) -> None:
    """Passed on, the model would never hear of them."""
    with pytest.raises(BadRequest):
        check_unread(body)
