"""Frames of a stream that differ only in their text, recognised by their bytes.

Nearly all frames of an answer are alike: an envelope, and a few characters of text in it. Reading the envelope anew is
most of what a delta costs. So once such a frame has been read in full, the next is compared with it as bytes::

    data: {"id":"c","choices":[{"delta":{"content":"Hel"},"index":0}],"created":1764967971}\\n\\n
    └──────────────────── head ──────────────────┘└┬┘└──────────────── tail ──────────────┘
                                                  text, a JSON string's inside

1. The slow path is the truth: a frame counts as a repeat only if reading it in full would give the same document but
   for that one string (and one number before it, which no reader looks at twice). That is shown when a frame is
   learned, by reading it with another string in its place: JSON and SSE have no way to tell what a string holds.
2. What is not plain (an escape of a surrogate, bytes that are not UTF-8, an empty text, CR as line end, a field more)
   is no repeat, and takes the slow path.
3. The reader gets the very document of the frame that was learned, with the new text in it: it must not keep it.
4. Frames are learned at the 4th, 8th, 16th … unknown frame: a stream whose frames are never alike costs little more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from toolsimlib.wire.sse import MAX_EVENT_BYTES, ServerSentEvent, SSEDecoder

_FRAME = re.compile(rb"(?:event: ?([^\r\n]*)\n)?data: ?([^\r\n]*)\n\n").fullmatch
# The inside of a JSON string with its short escapes, and those of single characters that are no surrogates.
_TEXT = re.compile(
    rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'
).match
_NUMBER = re.compile(rb"(?:0|[1-9][0-9]{0,17})(?![0-9.eE])").match
# What changes from frame to frame in a healthy stream: Responses' numbers, and llama.cpp's clock.
_COUNTED = re.compile(rb'"(sequence_number|created)": ?')
_KEYS = ("content", "reasoning_content", "reasoning")
_MARK = "another text"
_MAX_TEMPLATES = 4
_FIRST_LEARNED = 4
# Unknown frames after which a stream without a single template is left alone.
_PATIENCE = 64


@dataclass(slots=True)
class _Template:
    """A frame with its holes. ``event`` holds the document, ``place[key]`` is its text.

    ``middle``: what stands between the number and the text; None = there is no number.
    """

    event: ServerSentEvent
    place: dict[str, Any]
    key: str
    head: bytes
    middle: bytes | None
    tail: bytes

    def match(self, data: bytes, start: int) -> int:
        """Return where the repeat that begins at ``start`` ends, its text in its place; 0 if there is none."""
        if not data.startswith(self.head, start):
            return 0
        at = start + len(self.head)
        if self.middle is not None:
            number = _NUMBER(data, at)
            if number is None or not data.startswith(self.middle, number.end()):
                return 0
            at = number.end() + len(self.middle)
        end = _TEXT(data, at).end()  # type: ignore[union-attr]  # The pattern matches everywhere.
        if end == at or not data.startswith(self.tail, end):
            return 0
        raw = data[at:end]
        try:
            self.place[self.key] = json.loads(b'"%s"' % raw) if b"\\" in raw else raw.decode()
        except UnicodeDecodeError:
            return 0
        return end + len(self.tail)


class RepeatDecoder:
    """An SSEDecoder whose events hold their ``document`` where they repeat an earlier one.

    Each event must be read before the next is asked for: repeats share one document (rule 3).
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._decoder = SSEDecoder(limit)
        self._templates: list[_Template] = []
        self._unknown = 0

    def feed(self, data: bytes) -> Iterator[ServerSentEvent]:
        """Yield the events that ``data`` completes; ``b""`` is the end of input."""
        at = 0
        while at < len(data) and (self._templates or self._unknown < _PATIENCE):
            between_frames = self._decoder.between_frames
            if between_frames and (template := self._template(data, at)) is not None:
                at = self._end
                yield template.event
                continue
            end = data.find(b"\n\n", at) + 2
            if end == 1:
                break
            frame, at = data[at:end], end
            yield from self._decoder.feed(frame)
            if between_frames:
                self._note(frame)
        if at < len(data) or not data:
            yield from self._decoder.feed(data[at:])

    def _template(self, data: bytes, at: int) -> _Template | None:
        for number, template in enumerate(self._templates):
            if end := template.match(data, at):
                self._end = end
                if number:
                    self._templates.insert(0, self._templates.pop(number))
                return template
        return None

    def _note(self, frame: bytes) -> None:
        """Count an unknown frame, and learn it if it is its turn (rule 4)."""
        self._unknown += 1
        if self._unknown < _FIRST_LEARNED or self._unknown & (self._unknown - 1):
            return
        if (template := learned(frame)) is not None:
            self._templates = [template, *self._templates[: _MAX_TEMPLATES - 1]]


def learned(frame: bytes) -> _Template | None:
    """Return the template of one whole frame, None if it is not of the kind that repeats."""
    parts = _FRAME(frame)
    if parts is None:
        return None
    source = parts[2]
    document, name = _loaded(source), (parts[1] or b"").decode(errors="replace")
    found = _place(document)
    if document is None or found is None:
        return None
    place, key = found
    text, place[key] = place[key], _MARK
    for opening in re.finditer(rb'"%s": ?"' % key.encode(), source):
        start = opening.end()
        end = _TEXT(source, start).end()  # type: ignore[union-attr]
        if _loaded(source[:start] + _MARK.encode() + source[end:]) == document:
            break
    else:
        return None
    place[key] = text
    offset = parts.start(2)
    event = ServerSentEvent(name, source.decode(), document=document)
    template = _Template(event, place, key, frame[: offset + start], None, frame[offset + end :])
    return _with_number(template, document, source, start, offset)


def _with_number(template: _Template, document: dict[str, Any], source: bytes, start: int, offset: int) -> _Template:
    """Return the template with a hole for the number that changes from frame to frame, where there is one."""
    counted = _COUNTED.search(source, 0, start)
    number = counted and _NUMBER(source, counted.end())
    if not counted or not number or number.end() > start:
        return template
    key = counted[1].decode()
    if _loaded(source[: number.start()] + b"7" + source[number.end() :]) != {**document, key: 7}:
        return template
    head, middle = template.head[: offset + number.start()], template.head[offset + number.end() :]
    return replace(template, head=head, middle=middle)


def _loaded(source: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(source.decode())
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _place(document: dict[str, Any] | None) -> tuple[dict[str, Any], str] | None:
    """Return where a document's text stands: the object that holds it, and its key there."""
    match document:
        case {"choices": [{"delta": dict() as delta}]}:
            keys = [key for key in _KEYS if isinstance(delta.get(key), str) and delta[key]]
            return (delta, keys[0]) if len(keys) == 1 else None
        case {"delta": str(delta)} if delta:
            assert document is not None
            return document, "delta"
    return None
