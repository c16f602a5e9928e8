"""Stand-ins for texts: letters for letters, so that an exchange keeps its shape and loses its content.

1. Every word of a text becomes another one of the same length and case, the same word everywhere the same one.
2. What the addon works by stays: tags, JSON's syntax and keys, names of tools, roles, types, ids, models.
3. Only the backend's side is changed. The client's side is then made anew from it by the addon itself: so it fits, and
   no rule has to know what the addon does.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import mitmproxy.types
from mitmproxy import command
from mitmproxy.exceptions import CommandError, FlowReadException
from mitmproxy.http import HTTPFlow

from toolsimlib.recordings.capture import dump
from toolsimlib.recordings.redact import parse_json, pieces
from toolsimlib.recordings.replay import accept, flow_files, recorded, replay, unanswerable
from toolsimlib.wire.json_codec import dump as dump_json

logger = logging.getLogger(__name__)

# Fields whose strings are no one's words: the API's own, and what programs match by.
STRUCTURE = frozenset(
    {
        "call_id",
        "code",
        "created_by",
        "detail",
        "effort",
        "finish_reason",
        "format",
        "id",
        "include",
        "item_id",
        "mode",
        "model",
        "name",
        "namespace",
        "object",
        "param",
        "pattern",
        "phase",
        "reason",
        "required",
        "role",
        "service_tier",
        "status",
        "strict",
        "syntax",
        "system_fingerprint",
        "tool_call_id",
        "tool_choice",
        "truncation",
        "type",
        "verbosity",
        "$ref",
    }
)
_KEPT = re.compile(
    r"</?[A-Za-z_][\w.:-]*/?>"  # tags
    r"|\\+[\"'](?:[A-Za-z_][\w.-]*)\\+[\"']\s*:|[\"'][A-Za-z_][\w.-]*[\"']\s*:"  # JSON's keys, at any depth
    r"|(?<=[\"']name[\"']:)\s*[\"'][\w.:-]+[\"']|(?<=[\"']name[\"']: )[\"'][\w.:-]+[\"']"  # a call's name
    r"|\\+(?:u[0-9a-fA-F]{4}|[nrtbf\"\\/])"  # JSON's escapes
    r"|\b(?:true|false|null)\b"
    r"|\b(?:fc|ctc|call|msg|resp|rs)_\w+"  # ids
)
_WORD = re.compile(r"[^\W\d_]+|\d+")


class Pseudonyms:
    """Words for words. ``key`` decides which; ``names`` (of tools) stay."""

    def __init__(self, names: Iterable[str], key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(16)
        named = sorted({name for name in names if name}, key=len, reverse=True)
        stay = [rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in named]
        self._kept = re.compile("|".join([*stay, _KEPT.pattern]))

    def text(self, text: str) -> str:
        """Return a text of the same length with other words."""
        parts, done = [], 0
        for kept in self._kept.finditer(text):
            parts += [_WORD.sub(self._word, text[done : kept.start()]), kept[0]]
            done = kept.end()
        return "".join([*parts, _WORD.sub(self._word, text[done:])])

    def value(self, value: Any, key: str = "") -> Any:
        """Return plain data of the same shape with other texts."""
        match value:
            case str() if key not in STRUCTURE:
                return self.text(value)
            case list() if key == "bytes":
                return None  # A token's text again, in numbers.
            case list():
                return [self.value(each, key) for each in value]
            case dict() if key not in STRUCTURE or key in ("tool_choice", "format"):
                return {name: self.value(each, name) for name, each in value.items()}
        return value

    def stream(self, data: bytes) -> bytes:
        """Return an event stream of the same events with other texts: words may go over the ends of events."""
        lines = [line.decode("utf-8", "replace") for line in data.splitlines(keepends=True)]
        documents = [parse_json(line[5:]) if line.startswith("data:") else None for line in lines]
        owners = defaultdict[tuple[Any, ...], list[tuple[dict[str, Any], str]]](list)
        for document in documents:
            for place, owner, key in pieces(document):
                owners[place].append((owner, key))
        said = {id(owner): dict[str, str]() for each in owners.values() for owner, _ in each}
        for each in owners.values():
            whole = self.text("".join(owner[key] for owner, key in each))
            for owner, key in each:
                said[id(owner)][key], whole = whole[: len(owner[key])], whole[len(owner[key]) :]
        written = (
            line if document is None else f"data: {dump_json(self._event(document, said))}{line[len(line.rstrip()) :]}"
            for line, document in zip(lines, documents, strict=True)
        )
        return "".join(written).encode()

    def _event(self, value: Any, said: Mapping[int, Mapping[str, str]], key: str = "") -> Any:
        match value:
            case dict():
                done = said.get(id(value), {})
                return {
                    name: done[name] if name in done else self._event(each, said, name) for name, each in value.items()
                }
            case list() if key != "bytes":
                return [self._event(each, said, key) for each in value]
        return self.value(value, key)

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
            # No zero comes or goes at the front of a number: it would be none in JSON.
            return letter if letter == "0" else "123456789"[chance % 9]
        other = ascii_lowercase[chance % 26]
        return other.upper() if letter.isupper() else other


class Pseudonymise:
    """The command ``toolsim.pseudonymise``."""

    @command.command("toolsim.pseudonymise")  # type: ignore[untyped-decorator]
    def pseudonymise(self, path: mitmproxy.types.Path) -> None:
        """Replace all texts of recorded exchanges (a file or a folder) by stand-ins of the same shape, for good."""
        files = flow_files([Path(path).expanduser()])
        for file in files:
            try:
                pseudonymise(file)
            except (OSError, ValueError, FlowReadException) as problem:
                raise CommandError(f"toolsim.pseudonymise: {file}: {problem}") from problem
        logger.info("toolsim pseudonymised %d recorded exchanges", len(files))


def pseudonymise(path: Path, key: bytes | None = None) -> None:
    """Replace all texts of a recorded exchange. Raises OSError, or ValueError or FlowReadException if it is none.

    Needs mitmproxy's context, with the addon's options.
    """
    backend, client = recorded(path)
    request = parse_json((backend.request.raw_content or b"").decode("utf-8", "replace"))
    words = Pseudonyms(_names(request), key)
    _change(backend, words)
    if unanswerable(backend, client) and client.response is not None:
        # What the addon cannot make again holds its own words only, or the client's; of those none may stay.
        client.response.raw_content = b""
    accept(client, replay(backend), answered=not unanswerable(backend, client))
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


def _names(value: Any) -> Iterator[str]:
    """Yield what is called ``name`` anywhere: tools, namespaces, and whatever else must be called the same again."""
    match value:
        case dict():
            if isinstance(value.get("name"), str):
                yield value["name"]
            for each in value.values():
                yield from _names(each)
        case list():
            for each in value:
                yield from _names(each)
