"""Edits the text in an event stream, in which words and secrets can span several events.

Strings that are split across events are joined, edited without changing their length, and split again at the same
positions. Events that are not changed remain identical, byte for byte.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from toolsim.wire.apis import APIS
from toolsim.wire.json_codec import dump

Edit = Callable[[str], str]

_BOM = "\ufeff"

# The keys of values that are fragments of a longer text.
_PIECES = frozenset[str]().union(*(api.delta_text_keys for api in APIS.values()))
_PLACE = ("type", "item_id", "output_index", "content_index", "summary_index", "index")


class EditedStr(str):
    """A fragment of a text that has already been edited. It must not be edited again with the rest of the event."""

    __slots__ = ()


MAX_DEPTH = 100
"""Maximum nesting depth of a document. A function that traverses a document makes several recursive calls per level."""


def edit_stream(data: bytes, text: Edit, value: Callable[[Any], Any], line: Edit = str) -> bytes:
    """Return an event stream with edited text.

    ``text`` edits a text that is split across events, and must not change its length. ``value`` edits the JSON document
    in an event, and returns the same object if nothing changes. ``line`` edits a line without JSON. The data of an
    event that is nested too deeply is replaced with ``{}``.
    """
    # The bytes are split into lines before they are decoded, because str.splitlines also splits at U+2028.
    lines = [raw.decode("utf-8", "surrogateescape") for raw in data.splitlines(keepends=True)]
    if lines and lines[0].startswith(_BOM):
        lines[:1] = [_BOM, lines[0][1:]]
    events = list(_events(lines))
    touched = edit_pieces((event.document for event in events), text)
    edited: list[str] = []
    for number, event in enumerate(events):
        if event.document is None:
            edited += [line(text_line) for text_line in event.lines]
            continue
        document = value(event.document)
        if document is event.document and number not in touched and not isinstance(document, _TooDeep):
            edited += event.lines
        else:
            edited.append(f"data: {dump(document)}{_line_end(event.lines[-1])}")
    return "".join(edited).encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class _Event:
    """The lines of one event in a stream. ``document`` is the JSON document in the lines, or None if there is none."""

    lines: list[str]
    document: Any


def _events(lines: Iterable[str]) -> Iterator[_Event]:
    """Group the lines of a stream into events.

    If the ``data`` lines of an event do not form one JSON document, each of them is treated as a separate event.
    """
    data: list[str] = []
    for line in [*lines, ""]:
        if line.startswith("data:"):
            data.append(line)
            continue
        if len(data) > 1 and (whole := _parse("".join(map(_payload, data)))) is not None:
            yield _Event(data, whole)
        else:
            yield from (_Event([data_line], _parse(_payload(data_line))) for data_line in data)
        data = []
        if line:
            yield _Event([line], None)


def _payload(line: str) -> str:
    return line[5:]  # The line end is included, because JSON treats it as whitespace.


def _line_end(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]


def _parse(text: str) -> Any:
    """Return the JSON object or array in text, or None if there is none.

    If the object or array is nested too deeply, return a ``_TooDeep`` instead.
    """
    try:
        document = json.loads(text)
    except ValueError:
        return None
    except RecursionError:
        return _TooDeep()
    if not isinstance(document, dict | list):
        return None
    return _TooDeep() if is_deep(document, text) else document


def is_deep(document: Any, text: str) -> bool:
    """Return whether a document has more than ``MAX_DEPTH`` levels.

    ``text`` is the document's JSON text, which allows a faster check in most cases.
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    level = [document]
    for _ in range(MAX_DEPTH):
        members = (member for each in level for member in (each.values() if isinstance(each, dict) else each))
        level = [member for member in members if isinstance(member, dict | list)]
        if not level:
            return False
    return True


class _TooDeep(dict[str, Any]):
    """A placeholder for data that is nested too deeply to be edited. It is serialized as ``{}``."""


def edit_pieces(documents: Iterable[Any], text: Edit) -> set[int]:
    """Edit text that is split across documents. The documents are changed in place.

    Return the indexes of changed documents.
    """
    texts: dict[tuple[Any, ...], list[tuple[int, dict[str, Any], str]]] = defaultdict(list)
    for number, document in enumerate(documents):
        for place, owner, key in pieces_of(document):
            texts[place].append((number, owner, key))
    touched: set[int] = set()
    for pieces in texts.values():
        whole = "".join(owner[key] for _, owner, key in pieces)
        edited = text(whole)
        start = 0
        for number, owner, key in pieces:
            end = start + len(owner[key])
            if whole[start:end] != edited[start:end]:
                if "bytes" in owner:
                    owner["bytes"] = None  # This field contains the bytes of the token's original text.
                touched.add(number)
            owner[key] = EditedStr(edited[start:end])
            start = end
    return touched


def pieces_of(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], str]]:
    """Yield the location of each string in an event that is a fragment of a longer text, as (place, owner, key).

    ``owner[key]`` is the string. Fragments of the same text have the same ``place``.
    """
    match value:
        case dict():
            if "logprob" in value and isinstance(value.get("token"), str):
                yield (*place, "token"), value, "token"
            mark = tuple([mark for key in _PLACE if not isinstance(mark := value.get(key), dict | list)])
            for key, member in value.items():
                if isinstance(member, str) and key in _PIECES:
                    yield (*place, *mark, key), value, key
                elif isinstance(member, dict | list):
                    yield from pieces_of(member, (*place, *mark, key))
        case list():
            for position, item in enumerate(value):
                index = item.get("index", position) if isinstance(item, dict) else position
                if isinstance(item, dict) and "logprob" in item and place[-1:] != ("top_logprobs",):
                    index = 0  # Consecutive tokens are parts of one text, so they share one index.
                yield from pieces_of(item, (*place, index if isinstance(index, int) else position))


def parse_json(text: str) -> Any:
    """Return the JSON object or array in text, or None if there is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict | list) else None
