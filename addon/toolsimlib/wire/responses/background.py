"""An answer made in the background: how it is stored, and its status before and after its end.

It is stored from the start, in the form of ``stored.py``, with one more field: whether its events are stored
too, so that a client that lost its stream can resume after the last event that it received. What changes while
it is made is stored elsewhere: the stored Response stays ``queued`` until the answer has ended.

    queued ──▶ in_progress ──▶ completed | incomplete | failed
       └──────────────┴──────▶ cancelled                         failed also: its producer is gone

The events are stored as their very frames, so that every reader gets the same bytes. Their position is their
``sequence_number``; the oldest are dropped when there are too many bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from toolsimlib.errors import ApiError, BadRequest
from toolsimlib.wire.errors import error_fields
from toolsimlib.wire.json_codec import dump
from toolsimlib.wire.json_fields import mapping
from toolsimlib.wire.responses.shapes import failed
from toolsimlib.wire.sse import encode

PENDING = ("queued", "in_progress")
DONE = b"data: [DONE]\n\n"
"""Ends a stream; not an event, so it has no number."""

CANCELLED = ApiError("The response was cancelled.", code="response_cancelled")
DELETED = ApiError("The response was deleted.", code="response_deleted")
ENDED = ApiError("The response was cancelled or deleted.", code="response_cancelled")
STOPPED = ApiError("The proxy was stopped before the response was complete.", code="server_error")
LEFT_ALONE = ApiError("The proxy that made the response is gone.", code="server_error")
BEHIND = ApiError("The events from here on are no longer stored: retrieve the response without 'stream'.")

NOT_STREAMED = BadRequest("The response was not created with 'stream': it cannot be streamed.", "stream").error
NO_END = ApiError("The last events of the response are not stored: retrieve it without 'stream'.")
NO_EVENTS = BadRequest("The events of this response are not stored: retrieve it without 'stream'.", "stream").error

_ENDS = tuple(b"event: response.%s\n" % end for end in (b"completed", b"incomplete", b"failed"))
_STREAMED = b',"background":{"stream":true}}'
_WHOLE = b',"background":{"stream":false}}'


def value_of(response: bytes, own: bytes, *, stream: bool) -> bytes:
    """Return the value to store: the Response, the request's own items (a JSON array), and ``stream``."""
    return b'{"response":' + response + b',"input":' + own + (_STREAMED if stream else _WHOLE)


def is_one(value: bytes) -> bool:
    """Return whether a stored value is that of a background answer."""
    return value.endswith((_STREAMED, _WHOLE))


def is_streamed(value: bytes) -> bool:
    """Return whether the events of a stored answer are stored too."""
    return value.endswith(_STREAMED)


def is_in_background(record: Mapping[str, Any]) -> bool:
    """Return whether a stored answer was made in the background."""
    return "background" in record


def response_now(response: Mapping[str, Any], state: str, *, cancel: bool = False) -> dict[str, Any]:
    """Return the stored Response as its client gets it: with the ``state`` from its producer, "" if there is none.

    ``cancel``: it is cancelled now; a finished one stays as it is.
    """
    if response.get("status") not in PENDING:
        return dict(response)
    if not state:
        return failed(response, LEFT_ALONE)
    return {**response, "status": "cancelled" if cancel else state}


def with_response(record: Mapping[str, Any], response: Mapping[str, Any]) -> bytes:
    """Return the value of a stored answer with another Response."""
    stream = mapping(record.get("background")).get("stream") is True
    return value_of(dump(response).encode(), dump(record.get("input") or []).encode(), stream=stream)


def wants_stream(query: str) -> bool:
    """Return whether a URL's query asks for the events."""
    return parse_qs(query).get("stream", [""])[-1].lower() == "true"


def cursor(query: str) -> int:
    """Return the number of the event after which a client resumes, -1 for the beginning. Raises BadRequest."""
    after = parse_qs(query).get("starting_after", ["-1"])[-1]
    if not re.fullmatch(r"-1|[0-9]{1,15}", after):
        message = f"Invalid 'starting_after': expected the sequence_number of an event, but got {after[:20]!r}."
        raise BadRequest(message, "starting_after", "invalid_value")
    return int(after)


def frames_of(written: Sequence[bytes]) -> list[bytes]:
    """Return a writer's output as one frame per event."""
    return [frame + b"\n\n" for frame in b"".join(written).replace(DONE, b"").split(b"\n\n")[:-1]]


def events_value(first: int, frames: Sequence[bytes]) -> bytes:
    """Return the stored form of events; ``first``: the number of the first one."""
    return b"%d\n" % first + b"".join(frames)


def frames_after(value: bytes, after: int) -> list[bytes] | None:
    """Return the stored frames after an event, None if the first of them has been dropped."""
    head, _, rest = value.partition(b"\n")
    if not head.isdigit() or after + 1 < (first := int(head)):
        return None
    return frames_of([rest])[after + 1 - first :]


def has_end(value: bytes) -> bool:
    """Return whether the last stored event is the last one of the answer."""
    frames = value.partition(b"\n")[2].removesuffix(b"\n\n")
    return frames.rpartition(b"\n\n")[2].startswith(_ENDS)


def error_frame(error: ApiError, number: int) -> bytes:
    """Return the event that ends a stream which cannot continue; ``number``: the event's own."""
    return encode(dump({"type": "error", **error_fields(error), "sequence_number": number}), "error")
