"""Calls that a chat client never saw, restored where they were made: before the message that they led to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from toolsimlib.conversation import Called
from toolsimlib.wire.chat.request import called
from toolsimlib.wire.json_codec import dump


def conversations(messages: Sequence[Any], owner: str) -> Iterator[bytes]:
    """Yield the key of the conversation before each message, then of the whole; ``owner``: part of each key."""
    key = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=32)
    yield key.digest()
    for message in messages:
        key.update(dump(message).encode() + b"\n")
        yield key.digest()


def whole_key(body: Mapping[str, Any], owner: str) -> bytes:
    """Return the key of a request's conversation."""
    *_, key = conversations(_messages(body), owner)
    return key


def with_hidden(body: Mapping[str, Any], owner: str, find: Callable[[bytes], Sequence[Called]]) -> dict[str, Any]:
    """Return a request with the calls that ``find`` returns for the conversation before each message of the model."""
    messages = _messages(body)
    restored: dict[str, Any] = {**body, "messages": []}
    for key, message in zip(conversations(messages, owner), messages, strict=False):
        is_from_model = isinstance(message, dict) and message.get("role") == "assistant"
        if is_from_model and (calls := find(key)):
            restored = called(restored, "", calls)
        restored["messages"].append(message)
    return restored


def _messages(body: Mapping[str, Any]) -> list[Any]:
    messages = body.get("messages")
    return messages if isinstance(messages, list) else []
