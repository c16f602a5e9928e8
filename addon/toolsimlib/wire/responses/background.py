"""An answer that is made in the background: what is kept of it, and what it says of itself before and after its end.

It is kept from the start, in the form that ``kept.py`` gives, with one more field: whether its events are kept too, so
that a client that lost its stream can go on from the last one that it got. What changes while it is made is elsewhere:
the kept Response says ``queued`` until it is over.

    queued ──▶ in_progress ──▶ completed | incomplete | failed
       └──────────────┴──────▶ cancelled                         failed also: whoever made it is gone

The events are kept as their very frames, so that whoever reads them again reads the same. Their position is their
``sequence_number``; the oldest go when there are too many bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from toolsimlib.errors import ApiError, BadRequest
from toolsimlib.wire.errors import error_fields
from toolsimlib.wire.json_codec import dump
from toolsimlib.wire.lenient import mapping
from toolsimlib.wire.responses.shapes import failed
from toolsimlib.wire.sse import encode

PENDING = ("queued", "in_progress")
DONE = b"data: [DONE]\n\n"
"""Ends a stream, and is no event: it has no number."""

CANCELLED = ApiError("The response was cancelled.", code="response_cancelled")
DELETED = ApiError("The response was deleted.", code="response_deleted")
ENDED = ApiError("The response was cancelled or deleted.", code="response_cancelled")
STOPPED = ApiError("The proxy was stopped before the response was complete.", code="server_error")
LEFT_ALONE = ApiError("The proxy that made the response is gone.", code="server_error")
BEHIND = ApiError("The events from here on are not kept any more: retrieve the response without 'stream'.")

NOT_STREAMED = BadRequest("The response was not created with 'stream': it cannot be streamed.", "stream").error
NO_END = ApiError("The last events of the response are not kept: retrieve it without 'stream'.")
NO_EVENTS = BadRequest("The events of this response are not kept: retrieve it without 'stream'.", "stream").error

_ENDS = tuple(b"event: response.%s\n" % end for end in (b"completed", b"incomplete", b"failed"))
_STREAMED = b',"background":{"stream":true}}'
_WHOLE = b',"background":{"stream":false}}'


def value_of(response: bytes, own: bytes, *, stream: bool) -> bytes:
    """Return what is kept: the Response, the request's own items (a JSON array), and whether its events are kept."""
    return b'{"response":' + response + b',"input":' + own + (_STREAMED if stream else _WHOLE)


def is_one(value: bytes) -> bool:
    """Return whether a value is that of an answer in the background, and of nothing else that is kept."""
    return value.endswith((_STREAMED, _WHOLE))


def is_streamed(value: bytes) -> bool:
    """Return whether the events of what is kept are kept too."""
    return value.endswith(_STREAMED)


def is_in_background(record: Mapping[str, Any]) -> bool:
    """Return whether what is kept was made in the background."""
    return "background" in record


def response_now(response: Mapping[str, Any], state: str, *, cancel: bool = False) -> dict[str, Any]:
    """Return the kept Response as its client gets it: with its ``state`` by whoever makes it, "" if nobody does.

    ``cancel``: it is cancelled now; one that is over stays as it is.
    """
    if response.get("status") not in PENDING:
        return dict(response)
    if not state:
        return failed(response, LEFT_ALONE)
    return {**response, "status": "cancelled" if cancel else state}


def with_response(record: Mapping[str, Any], response: Mapping[str, Any]) -> bytes:
    """Return what is kept with another Response."""
    stream = mapping(record.get("background")).get("stream") is True
    return value_of(dump(response).encode(), dump(record.get("input") or []).encode(), stream=stream)


def wants_stream(query: str) -> bool:
    """Return whether a URL's query asks for the events."""
    return parse_qs(query).get("stream", [""])[-1].lower() == "true"


def cursor(query: str) -> int:
    """Return the number of the event behind which a client goes on, -1 for the beginning. Raises BadRequest."""
    after = parse_qs(query).get("starting_after", ["-1"])[-1]
    if not re.fullmatch(r"-1|[0-9]{1,15}", after):
        message = f"Invalid 'starting_after': expected the sequence_number of an event, but got {after[:20]!r}."
        raise BadRequest(message, "starting_after", "invalid_value")
    return int(after)


def frames_of(written: Sequence[bytes]) -> list[bytes]:
    """Return what a writer has written as one frame for each event."""
    return [each + b"\n\n" for each in b"".join(written).replace(DONE, b"").split(b"\n\n")[:-1]]


def events_value(first: int, frames: Sequence[bytes]) -> bytes:
    """Return events as they are kept; ``first``: the number of the first one."""
    return b"%d\n" % first + b"".join(frames)


def frames_after(value: bytes, after: int) -> list[bytes] | None:
    """Return the frames behind an event, of what is kept; None if the first of them is there no more."""
    head, _, rest = value.partition(b"\n")
    if not head.isdigit() or after + 1 < (first := int(head)):
        return None
    return frames_of([rest])[after + 1 - first :]


def has_end(value: bytes) -> bool:
    """Return whether the last event of what is kept is the last one of the answer."""
    frames = value.partition(b"\n")[2].removesuffix(b"\n\n")
    return frames.rpartition(b"\n\n")[2].startswith(_ENDS)


def error_frame(error: ApiError, number: int) -> bytes:
    """Return the event that ends a stream which cannot go on; ``number``: its own."""
    return encode(dump({"type": "error", **error_fields(error), "sequence_number": number}), "error")
