"""Replaces text with pseudonyms, letter for letter, so that an exchange retains its structure but loses its content.

1. Each word in a text is replaced with a different word of the same length and case. Equal words remain equal.
2. Everything on which the addon depends remains unchanged: tags, JSON syntax and keys, tool names, roles, types, IDs,
   and models.
3. Only the backend's side of a recording is edited. Afterwards, the addon generates the client's side from it, so that
   both sides match.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from mitmproxy.http import HTTPFlow

from toolsim.recordings.capture import dump
from toolsim.recordings.replay import replay, unanswerable, update_recording
from toolsim.recordings.stored import recorded
from toolsim.recordings.stream_text import EditedStr, edit_stream, parse_json
from toolsim.wire.apis import APIS
from toolsim.wire.json_codec import dump as dump_json

# Fields whose strings are not free text, but IDs, names that the API defines, or strings that programs compare.
STRUCTURE = frozenset(
    {
        "code",
        "detail",
        "effort",
        "format",
        "id",
        "include",
        "mode",
        "model",
        "name",
        "namespace",
        "object",
        "param",
        "pattern",
        "reason",
        "required",
        "role",
        "service_tier",
        "status",
        "strict",
        "syntax",
        "tool_choice",
        "type",
        "verbosity",
        "$ref",
    }
).union(*(api.identifier_keys for api in APIS.values()))
_KEPT = re.compile(
    r"</?[A-Za-z_][\w.:-]*/?>"  # Tags are kept.
    # JSON keys are kept at any nesting depth.
    r"|\\+[\"'](?:[A-Za-z_][\w.-]*)\\+[\"']\s*:|[\"'][A-Za-z_][\w.-]*[\"']\s*:"
    r"|(?<=[\"']name[\"']:)\s*[\"'][\w.:-]+[\"']|(?<=[\"']name[\"']: )[\"'][\w.:-]+[\"']"  # Names of calls are kept.
    r"|\\+(?:u[0-9a-fA-F]{4}|[nrtbf\"\\/])"  # JSON escapes are kept.
    r"|\b(?:true|false|null)\b"
    r"|\b(?:fc|ctc|call|msg|resp|rs)_\w+"  # IDs of items are kept.
)
_WORD = re.compile(r"[^\W\d_]+|\d+")


class Pseudonyms:
    """Replaces words with pseudonyms derived from ``key``. ``names`` contains tool names, which are kept."""

    def __init__(self, names: Iterable[str], key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(16)
        named = sorted({name for name in names if name}, key=len, reverse=True)
        stay = [rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in named]
        self._kept = re.compile("|".join([*stay, _KEPT.pattern]))

    def text(self, text: str) -> str:
        """Return text of the same length, with words replaced by pseudonyms."""
        parts, done = [], 0
        for kept in self._kept.finditer(text):
            parts += [_WORD.sub(self._word, text[done : kept.start()]), kept[0]]
            done = kept.end()
        return "".join([*parts, _WORD.sub(self._word, text[done:])])

    def value(self, value: Any, key: str = "") -> Any:
        """Return a copy of JSON data with pseudonyms in its text.

        ``key`` is the name of the field that contains the data.
        """
        match value:
            case EditedStr():
                return value
            case str() if key not in STRUCTURE:
                return self.text(value)
            case list() if key == "bytes":
                return None  # These numbers are the bytes of a token's text, which would reveal the words.
            case list():
                return [self.value(item, key) for item in value]
            # An object is edited even under a key in ``STRUCTURE``, because the key can be the name of a property.
            case dict():
                return {name: self.value(member, name) for name, member in value.items()}
        return value

    def stream(self, data: bytes) -> bytes:
        """Return a copy of an event stream with pseudonyms in place of words. A word can span several events."""
        return edit_stream(data, self.text, self.value)

    def _word(self, found: re.Match[str]) -> str:
        word = found[0]
        digest = self._digits(word.lower())
        letters = (self._letter(letter, next(digest)) for letter in word)
        return "".join(letters)

    def _digits(self, word: str) -> Iterator[int]:
        block = 0
        while True:
            yield from blake2b(f"{block} {word}".encode(), key=self._key, digest_size=64).digest()
            block += 1

    def _letter(self, letter: str, chance: int) -> str:
        if letter.isdigit():
            # Zeros are kept, and no other digit becomes a zero, because a JSON number must not start with a zero.
            return letter if letter == "0" else "123456789"[chance % 9]
        other = ascii_lowercase[chance % 26]
        return other.upper() if letter.isupper() else other


def pseudonymise(path: Path, key: bytes | None = None) -> None:
    """Replace all text in a file with a recorded exchange.

    The addon's options must be registered in mitmproxy's context. Raises OSError if the file cannot be read or written,
    and ValueError or FlowReadException if it is not a recording.
    """
    backend, client = recorded(path)
    request = parse_json((backend.request.raw_content or b"").decode("utf-8", "replace"))
    words = Pseudonyms(names_in(request), key)
    _change(backend, words)
    if unanswerable(backend, client) and client.response is not None:
        # The addon cannot generate this answer again, so it is dropped. Otherwise, it would still contain the real
        # words.
        client.response.raw_content = b""
    client.comment = words.text(client.comment)
    update_recording(client, replay(backend), answered=not unanswerable(backend, client))
    path.write_bytes(dump([backend, client]))


def _change(flow: HTTPFlow, words: Pseudonyms) -> None:
    messages = [flow.request] if flow.response is None else [flow.request, flow.response]
    for message in messages:
        content = message.raw_content or b""
        if message.headers.get("content-type", "").startswith("text/event-stream"):
            message.raw_content = words.stream(content)
            continue
        text = content.decode("utf-8", "replace")
        document = parse_json(text)
        changed = words.text(text) if document is None else dump_json(words.value(document))
        message.raw_content = changed.encode()
        if "content-length" in message.headers:
            message.headers["content-length"] = str(len(message.raw_content))


def names_in(value: Any) -> Iterator[str]:
    """Yield the value of every field called ``name``. The names of tools, namespaces and so on must not be replaced."""
    match value:
        case dict():
            if isinstance(value.get("name"), str):
                yield value["name"]
            for member in value.values():
                yield from names_in(member)
        case list():
            for item in value:
                yield from names_in(item)
