"""Converts the events of a background answer to and from stored frames, and parses query parameters.

Events are stored as frames, which are the bytes that clients receive, so that every reader receives the same bytes.
Frames are ordered by ``sequence_number``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import parse_qs

from toolsim.core.errors import ApiError, BadRequest
from toolsim.wire.errors import error_fields
from toolsim.wire.json_codec import dump
from toolsim.wire.sse import encode

DONE = b"data: [DONE]\n\n"
"""The frame that marks the end of a stream. It is not an event, so it has no sequence number."""

DELETED = ApiError("The response was deleted.", code="response_deleted")
ENDED = ApiError("The response was cancelled or deleted.", code="response_cancelled")
BEHIND = ApiError("Later events of the response are no longer stored: retrieve the response without 'stream'.")

NOT_STREAMED = BadRequest("The response cannot be streamed, because it was not created with 'stream'.", "stream").error
NO_END = ApiError("The last events of the response are not stored: retrieve the response without 'stream'.")
NO_EVENTS = BadRequest(
    "The events of this response are not stored: retrieve the response without 'stream'.", "stream"
).error

_ENDS = tuple(b"event: response.%s\n" % end for end in (b"completed", b"incomplete", b"failed"))


def wants_stream(query: str) -> bool:
    """Return whether a URL's query requests the answer as a stream of events."""
    return parse_qs(query).get("stream", [""])[-1].lower() == "true"


def cursor(query: str) -> int:
    """Return the number of the last event that the client has received, from the URL's query, or -1 for none.

    Raises BadRequest if the number is invalid.
    """
    after = parse_qs(query).get("starting_after", ["-1"])[-1]
    if not re.fullmatch(r"-1|[0-9]{1,15}", after):
        message = f"Invalid 'starting_after': expected the sequence_number of an event, but got {after[:20]!r}."
        raise BadRequest(message, "starting_after", "invalid_value")
    return int(after)


def frames_of(written: Sequence[bytes]) -> list[bytes]:
    """Split a writer's output into frames with one event each."""
    return [frame + b"\n\n" for frame in b"".join(written).replace(DONE, b"").split(b"\n\n")[:-1]]


def events_value(first: int, frames: Sequence[bytes]) -> bytes:
    """Return frames in their stored form. ``first`` is the number of the first event."""
    return b"%d\n" % first + b"".join(frames)


def frames_after(value: bytes, after: int) -> list[bytes] | None:
    """Return the stored frames after the event with the number ``after``.

    Return None if some of them have been dropped.
    """
    head, _, rest = value.partition(b"\n")
    if not head.isdigit() or after + 1 < (first := int(head)):
        return None
    return frames_of([rest])[after + 1 - first :]


def has_end(value: bytes) -> bool:
    """Return whether the stored events include the last event of the answer."""
    frames = value.partition(b"\n")[2].removesuffix(b"\n\n")
    return frames.rpartition(b"\n\n")[2].startswith(_ENDS)


def error_frame(error: ApiError, number: int) -> bytes:
    """Return an error event for a stream that cannot continue. ``number`` is the event's sequence number."""
    return encode(dump({"type": "error", **error_fields(error), "sequence_number": number}), "error")
