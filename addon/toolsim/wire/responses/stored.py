"""The stored form of a Responses answer, and the resolution of requests that refer to stored data.

A stored answer consists of the Response object as the client received it, and the request's own items (``input``). It
can continue another answer, or a conversation. The context of a request consists of the input and output of all the
records that it continues, oldest first, followed by the request's own items.

1. A request that refers to stored data becomes a request that contains the data. Backends do not see toolsim's IDs, and
   do not need a store. The request is sent with ``store: false``, since toolsim stores the answer.
2. An item can be referred to by its ID. An item that is already in the context is not repeated.
3. Stored data can be damaged. The records that a request continues must be complete, because the request would be a
   different question without its context. All other stored data is read leniently.
4. If an answer could not be stored, its last event has ``store: false``, so that clients do not refer to it.
5. A context that has been compacted begins with the items that compaction retains (``compaction.py``).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolsim.core.errors import ApiError, BadRequest
from toolsim.wire.errors import error_fields
from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.json_fields import expect, mapping, mappings, optional, string, wrong_type
from toolsim.wire.responses.compaction import since_summary, wants_summary
from toolsim.wire.responses.history import input_items, read_history
from toolsim.wire.responses.shapes import failed
from toolsim.wire.sse import encode

_NAMES = re.compile(rb'"(?:previous_response_id|conversation|item_reference|background)"')
_LONGEST_NAME = len('"previous_response_id"')
_MENTIONS = re.compile(rb'"(?:(?:previous_response_id|conversation|item_reference)"|background"\s*:\s*true)')
_REFERRING = ("previous_response_id", "conversation")
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "compaction": "cmp",
}
_ENDINGS = (b"event: response.completed\n", b"event: response.incomplete\n")

MAX_NAMES = 256
"""Maximum number of items of a request, and of an answer, that later requests can reference. If there are more items,
only the last ones can be referenced.
"""


@dataclass(frozen=True, slots=True)
class References:
    """The IDs of an earlier response, a conversation and single items that a request references. A field is empty if
    the request has no reference of its kind.
    """

    previous: str = ""
    conversation: str = ""
    items: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.previous or self.conversation or self.items)


@dataclass(frozen=True, slots=True)
class Recalled:
    """The stored data for the ``references`` in a request."""

    references: References = References()
    records: tuple[bytes, ...] = ()
    """Stored values of the responses, or of the conversation, that a request continues, oldest first."""
    holders: Mapping[str, bytes] = field(default_factory=dict)
    """Stored values that contain individually referenced items, by item ID."""

    @property
    def size(self) -> int:
        """The total size of all values, in bytes."""
        return sum(map(len, self.records)) + sum(map(len, self.holders.values()))


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request in which stored content has replaced all references."""

    body: dict[str, Any]
    own: list[dict[str, Any]]
    """The request's own items, in stored form."""
    names: tuple[str, ...]
    """IDs of the request's own items in stored form."""
    echo: dict[str, Any]
    """Fields of the request that its answer repeats."""


def may_refer_to_stored(body: bytes) -> bool:
    """Return whether a body might refer to stored data, or require a background answer.

    A reference is missed only if it is written with JSON escapes.
    """
    return _MENTIONS.search(body) is not None


def pieces(body: bytes, size: int) -> Iterator[bool]:
    """Yield, for each section of ``size`` bytes in a body, whether it might contain a reference to stored data."""
    for start in range(0, len(body), size):
        yield _NAMES.search(body, start, start + size + _LONGEST_NAME) is not None


def references(body: Mapping[str, Any]) -> References:
    """Return the references that a request contains. Raises BadRequest, which names the parameter, if a reference is
    invalid.
    """
    previous = optional(body, "previous_response_id", str) or ""
    conversation = body.get("conversation") or ""
    if isinstance(conversation, dict):
        conversation = optional(conversation, "id", str, "conversation") or ""
    if not isinstance(conversation, str):
        raise wrong_type(conversation, "a string or an object", "conversation")
    for name, given in (("previous_response_id", previous), ("conversation", conversation)):
        if not given and body.get(name) is not None:
            raise BadRequest(f"Invalid '{name}': expected an id, but got an empty string.", name, "invalid_value")
    if previous and conversation:
        message = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Provide only one of them."
        raise BadRequest(message, "previous_response_id", "mutually_exclusive_parameters")
    items = body.get("input")
    asked = mappings(items)
    own = {string(item.get("id")) for item in asked if item.get("type") != "item_reference"}
    refers = [string(item.get("id")) for item in asked if item.get("type") == "item_reference"]
    return References(previous, conversation, tuple(dict.fromkeys(id for id in refers if id and id not in own)))


def resolve(body: Mapping[str, Any], recalled: Recalled) -> Resolved:
    """Return a request in which each reference is replaced with the stored content.

    Raises BadRequest if the content cannot be used or, with the status 404, if it is not in the store.
    """
    trigger: list[dict[str, Any]] = []
    if wants_summary(body):
        # The last item requests the summary, and is not part of the conversation.
        trigger, body = body["input"][-1:], {**body, "input": body["input"][:-1]}
    records = [parse_object(record) for record in recalled.records]
    _check_continued(recalled.references, records)
    if not all(map(_is_whole, records)):
        raise NotStored(replace(not_found(recalled.references, _first(recalled.references)), status=404))
    if recalled.references:
        # An error must name an item's position in the client's own request. The resolved items would shift the
        # positions.
        read_history(body.get("input"))
    history = since_summary([item for record in records for item in items_of(record)])
    present = {string(item.get("id")) for item in history}
    found = _found(recalled, present)
    own = _own_items(body, found)
    resolved = {key: value for key, value in body.items() if key not in _REFERRING}
    resolved |= {"input": [*history, *own, *trigger], "store": False}
    asked = recalled.references
    conversation = {"conversation": {"id": asked.conversation}} if asked.conversation else {}
    echo = {"previous_response_id": asked.previous or None, "store": body.get("store") is not False, **conversation}
    sent_ids = {string(item.get("id")) for item in mappings(body.get("input"))}
    names = tuple(id for item in own if (id := item["id"]) not in sent_ids)[-MAX_NAMES:]
    return Resolved(resolved, own, names, echo)


def stored_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an input item in stored form: with an ID, and with the content of a message as parts."""
    kind = string(item.get("type")) or "message"
    stored = {**item, "type": kind}
    if not string(item.get("id")):
        stored["id"] = f"{_PREFIXES.get(kind, 'item')}_{secrets.token_hex(24)}"
    if kind == "message":
        stored.setdefault("status", "completed")
        if isinstance(content := item.get("content"), str):
            is_ours = item.get("role") == "assistant"
            part: dict[str, Any] = {"type": "output_text" if is_ours else "input_text", "text": content}
            stored["content"] = [part | ({"annotations": []} if is_ours else {})]
    elif kind == "function_call_output":
        stored.setdefault("status", "completed")
    return stored


def items_of(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return all items of a record: a conversation's items, or the input and output of an answer."""
    if record is None:
        return []
    if "items" in record:
        return [dict(item) for item in mappings(record["items"])]
    response = mapping(record.get("response"))
    return [dict(item) for item in (*mappings(record.get("input")), *mappings(response.get("output")))]


def _first(asked: References) -> str:
    return asked.previous or asked.conversation


def _is_whole(record: Mapping[str, Any] | None) -> bool:
    """Return whether a stored value is complete: either an answer with its input, or a conversation."""
    if record is None:
        return False
    if "items" in record:
        return isinstance(record["items"], list)
    response = record.get("response")
    return isinstance(record.get("input"), list) and isinstance(response, dict) and "output" in response


def output_names(response: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """Return the IDs of an answer's items, or None for a failed answer, because failed answers are not stored."""
    if response is None or response.get("status") not in ("completed", "incomplete"):
        return None
    return tuple(id for item in mappings(response.get("output")) if (id := string(item.get("id"))))[-MAX_NAMES:]


def appended(conversation: bytes, own: bytes, output: object) -> bytes:
    """Return the stored value of a conversation with a request's own items (``own``, a JSON array) and an answer's
    output appended.
    """
    more = [items for items in (own.strip()[1:-1].strip(), dump(output).encode()[1:-1]) if items]
    if not more:
        return conversation
    head = conversation.rstrip().removesuffix(b"]}")
    return b",".join([head, *more] if not head.endswith(b"[") else [head + more[0], *more[1:]]) + b"]}"


def not_found(references: References, missing: str) -> ApiError:
    """Return the error for a reference to data that is not in the store. ``missing`` is the ID in the reference."""
    kind = "invalid_request_error"
    if references.conversation == missing:
        return ApiError(f"Conversation with id '{missing}' not found.", kind, None, "conversation", status=404)
    if missing in references.items:
        return ApiError(f"Item with id '{missing}' not found.", kind, None, "input", status=404)
    message = f"Previous response with id '{missing}' not found."
    return ApiError(message, kind, "previous_response_not_found", "previous_response_id", status=400)


def with_outcome(data: bytes, outcome: ApiError | bool, *, stream: bool = True) -> bytes:
    """Return a non-streamed answer, or the last frames of a stream, after an attempt to store the answer.

    ``outcome`` is true if the answer was stored. If it is false, ``store`` is set to false. If it is an error, the
    error replaces the end of a stream, but the caller has to replace the body of a non-streamed answer.
    """
    if isinstance(outcome, ApiError):
        return as_failed(data, outcome)
    return data if outcome else without_promise(data, stream=stream)


def without_promise(data: bytes, *, stream: bool) -> bytes:
    """Return a non-streamed answer, or the last frames of a stream, with ``store`` set to false."""

    def change(event: dict[str, Any]) -> bytes:
        event["response"]["store"] = False
        return encode(dump(event), event["type"])

    if stream:
        return _with_ending(data, change)
    body = parse_object(data)
    return data if body is None else dump({**body, "store": False}).encode()


def as_failed(data: bytes, error: ApiError) -> bytes:
    """Return the last frames of an answer, rewritten as the end of a failed answer."""

    def change(event: dict[str, Any]) -> bytes:
        number = event["sequence_number"]
        first = {"type": "error", **error_fields(error), "sequence_number": number}
        response = failed(event["response"], error) | {"store": False}
        last = {"type": "response.failed", "response": response, "sequence_number": number + 1}
        return encode(dump(first), "error") + encode(dump(last), "response.failed")

    return _with_ending(data, change)


def _with_ending(data: bytes, change: Callable[[dict[str, Any]], bytes]) -> bytes:
    frames = data.split(b"\n\n")
    for index, frame in enumerate(frames):
        if frame.startswith(_ENDINGS) and (event := parse_object(frame.partition(b"\ndata: ")[2])) is not None:
            frames[index] = change(event).removesuffix(b"\n\n")
    return b"\n\n".join(frames)


def _check_continued(asked: References, records: Sequence[Mapping[str, Any] | None]) -> None:
    """Raise BadRequest if a request continues a background answer that is unfinished, failed or canceled.

    Also raise it if a request names an answer as its conversation, or a conversation as its previous response,
    because adding items to the wrong kind of record would damage the record.
    """
    last, previous = (records[-1] if records else None) or {}, asked.previous
    if ("conversation" if previous else "response") in last:
        raise NotStored(not_found(asked, _first(asked)))
    status = mapping(last.get("response")).get("status")
    if status in ("queued", "in_progress", "failed", "cancelled"):
        message = f"Previous response with id '{previous}' cannot be continued: its status is '{status}'."
        raise BadRequest(message, "previous_response_id", "invalid_value")


def _found(recalled: Recalled, present: set[str]) -> dict[str, dict[str, Any]]:
    """Return the items that ``item_reference`` items identify, except items that are already in the context."""
    read: dict[bytes, dict[str, dict[str, Any]]] = {}
    found: dict[str, dict[str, Any]] = {}
    for id in recalled.references.items:
        if id in present:
            continue
        holder = recalled.holders.get(id, b"")
        if holder not in read:
            read[holder] = {string(item.get("id")): item for item in items_of(parse_object(holder))}
        if id not in read[holder]:
            raise NotStored(not_found(recalled.references, id))
        found[id] = read[holder][id]
    return found


def _own_items(body: Mapping[str, Any], found: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    own: list[dict[str, Any]] = []
    for index, item in enumerate(input_items(body)):
        item = expect(item, dict, f"input[{index}]")
        if item.get("type") != "item_reference":
            own.append(stored_item(item))
        elif (id := string(item.get("id"))) in found:
            own.append(found[id])
    return own


class NotStored(BadRequest):
    """Raised for a reference to data that is not in the store."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error
