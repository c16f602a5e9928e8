"""Restores calls that a client never saw because its API has no items for them.

The calls are inserted before the message that followed them. They are found under the answer's key, which is built from
the owner, the conversation before the answer, and the answer's text and visible calls. Therefore, calls from an answer
that the client never received are not added to a different conversation with the same beginning, or to a message that a
client has invented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from toolsim.core.conversation import Called
from toolsim.wire.api import Api
from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.json_fields import array, mapping, mappings, string


def conversations(messages: Sequence[Any], owner: str) -> Iterator[bytes]:
    """Yield the key of the conversation before each message, then the key of the complete conversation.

    ``owner`` is part of each key.
    """
    key = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=32)
    yield key.digest()
    for message in messages:
        key.update(dump(_lasting(message)).encode() + b"\n")
        yield key.digest()


def whole_key(body: Mapping[str, Any], owner: str) -> bytes:
    """Return the key of a request's complete conversation."""
    *_, key = conversations(array(body.get("messages")), owner)
    return key


def answer_key(conversation: bytes, words: str, calls: Iterable[tuple[str, str]]) -> bytes:
    """Return the key of an answer, given the key of the ``conversation`` before it, and its text and visible calls.

    The key does not depend on leading or trailing whitespace or on the formatting of JSON, because clients trim text
    and reserialize arguments.
    """
    key = blake2b(conversation, digest_size=32)
    key.update(words.strip().encode("utf-8", "surrogatepass"))
    for name, arguments in calls:
        parsed = parse_object(arguments.encode("utf-8", "surrogatepass"))
        known = arguments if parsed is None else dict(sorted(parsed.items()))
        key.update(b"\n" + dump([name, known]).encode("utf-8", "surrogatepass"))
    return key.digest()


def with_hidden(
    body: Mapping[str, Any],
    owner: str,
    find: Callable[[bytes], Sequence[Called]],
    api: Api,
) -> dict[str, Any]:
    """Return a request with the hidden calls inserted before the model's answers. ``find`` returns the hidden calls
    that belong to an answer, given the answer's key. ``api`` is the API of the request.
    """
    messages = array(body.get("messages"))
    restored: dict[str, Any] = {**body, "messages": []}
    for key, message in zip(conversations(messages, owner), messages, strict=False):
        is_from_model = isinstance(message, dict) and message.get("role") == "assistant"
        if is_from_model and (calls := find(answer_key(key, _words(message), api.calls_of(message)))):
            restored = api.append_tool_results(restored, "", calls)
        restored["messages"].append(message)
    return restored


def _lasting(message: Any) -> Any:
    """Return a message without cache markers, because clients move the markers to the last message in every turn."""
    content = mapping(message).get("content")
    if not isinstance(content, list):
        return message
    blocks = [
        {key: value for key, value in block.items() if key != "cache_control"} if isinstance(block, dict) else block
        for block in content
    ]
    return {**message, "content": blocks}


def _words(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, list):
        return string(content)
    return "".join(string(part.get("text")) for part in mappings(content))
