"""The stored form of background answers, and their status while they are produced and afterwards.

An answer is stored from the start, in the form of ``stored.py``. An additional field specifies whether its events are
also stored. If they are, a client that lost its stream can resume after the last event that it received. State that
changes while the answer is being produced is stored elsewhere, so the stored Response has the status ``queued`` until
the answer has ended.

    queued ──▶ in_progress ──▶ completed | incomplete | failed
       └──────────────┴──────▶ cancelled                         failed: also if its producer is gone
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolsim.core.errors import ApiError
from toolsim.wire.json_codec import dump
from toolsim.wire.json_fields import mapping, string
from toolsim.wire.responses.shapes import failed

PENDING = ("queued", "in_progress")
CANCELLED = ApiError("The response was cancelled.", code="response_cancelled")
STOPPED = ApiError("The proxy was stopped before the response was complete.", code="server_error")
LEFT_ALONE = ApiError("The proxy that generated the response is no longer running.", code="server_error")
_STREAMED = b',"background":{"stream":true}}'
_WHOLE = b',"background":{"stream":false}}'


def value_of(response: bytes, own: bytes, *, stream: bool) -> bytes:
    """Return the value to store for a background answer. ``response`` is the Response as JSON, ``own`` contains the
    request's own items as a JSON array, and ``stream`` specifies whether the events are also stored.
    """
    return b'{"response":' + response + b',"input":' + own + (_STREAMED if stream else _WHOLE)


def is_background_value(value: bytes) -> bool:
    """Return whether a stored value is a background answer."""
    return value.endswith((_STREAMED, _WHOLE))


def is_streamed(value: bytes) -> bool:
    """Return whether the events of a stored answer are also stored."""
    return value.endswith(_STREAMED)


def is_in_background(record: Mapping[str, Any]) -> bool:
    """Return whether a stored answer was produced in the background."""
    return "background" in record


def response_now(response: Mapping[str, Any], state: str, *, cancel: bool = False) -> dict[str, Any]:
    """Return the Response with its current status. A finished Response remains unchanged.

    ``state`` is the status that the Response's producer reports, or "" if the producer is gone. ``cancel`` specifies
    whether to cancel the Response.
    """
    if string(response.get("status")) not in PENDING:
        return dict(response)
    if not state:
        return failed(response, LEFT_ALONE)
    return {**response, "status": "cancelled" if cancel else state}


def with_response(record: Mapping[str, Any], response: Mapping[str, Any]) -> bytes:
    """Return the value of a stored answer with its Response replaced by ``response``."""
    stream = mapping(record.get("background")).get("stream") is True
    return value_of(dump(response).encode(), dump(record.get("input") or []).encode(), stream=stream)
