"""Recognizes stream frames that differ from an earlier frame only in their text, without parsing their JSON.

Nearly all frames of a streamed answer consist of the same JSON envelope around a few characters of text, and parsing
the envelope accounts for most of the cost of a delta. Therefore, this module parses one such frame completely and keeps
it as a template. If the bytes of a later frame match the template, only the text is extracted. All frames that arrive
in one chunk are compared in one step::

    data: {"sequence_number":7,"type":"response.output_text.delta","delta":"Hel","obfuscation":"aX3"}\\n\\n
    └───────── head ────────┘ └───────────────── middle ─────────────────┘└┬┘└────── tail ─────┘   └─ end ┘
                                                            text, the inside of a JSON string

1. A frame counts as a repeat of a template only if a complete parse would produce the same document, apart from the
   text and from fields that no reader uses. These fields are the sequence number (in the Responses API), and the
   padding that OpenAI and Mistral use to hide the length of the text. The sequence number precedes the text or, if a
   Pydantic model writes the fields (vLLM), follows it. Before a frame becomes a template, it is parsed a second time
   with different values in these fields. One such test is sufficient, because neither JSON nor SSE depends on the
   content of a string.
2. A frame is not a repeat, and is parsed completely, if it contains an escaped surrogate, bytes that are not UTF-8, an
   empty text, CR as a line end, or a field that the template does not have.
3. The document of a repeat is the template's own document with the text replaced. Readers must therefore not store it.
4. A stream learns a template after 4, 8, 16, … unknown frames in total. Once enough repeats have occurred, the count
   starts again at 0. Therefore, a stream whose frames are all different costs little more than without templates, and a
   stream whose envelope changes every second (because of llama.cpp's clock) learns the new envelope.
5. The reader is not called for a repeat if it has already converted a repeat of the same template to a delta with the
   same text, and only repeats have arrived since. Adjacent repeats that arrive in one chunk form one event, because the
   client receives their texts at the same time, and the cost of processing an event does not depend on its length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from toolsim.core.events import BackendEvent, ReasoningDelta, StructuredDelta, TextDelta
from toolsim.wire.api import Reader
from toolsim.wire.apis import APIS
from toolsim.wire.json_codec import load
from toolsim.wire.sse import MAX_EVENT_BYTES, ServerSentEvent, SSEDecoder

_BLANK_LINE = b"\n\n"
_FRAME = re.compile(rb"(?:event: ?([^\r\n]*)\n)?data: ?([^\r\n]*)\n\n").fullmatch
# The content of a JSON string. Short escapes and \u escapes are allowed, except escapes of surrogates.
_TEXT = r'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'
_TEXT_AT = re.compile(_TEXT.encode()).match
_IS_TEXT = re.compile(_TEXT).fullmatch
# Each pattern matches values joined by commas. The values themselves must not contain commas.
_ARE_NUMBERS = re.compile(r"(?:0|[1-9][0-9]{0,17})(?:,(?:0|[1-9][0-9]{0,17}))*+").fullmatch
_ARE_WORDS = re.compile(r"[A-Za-z0-9_+/=,-]*").fullmatch
# Fields whose values can differ between frames that match the same template. Each has a pattern that finds the value,
# and a substitute value for the test that a frame must pass before it becomes a template (rule 1).
_HOLES: dict[str, tuple[re.Pattern[bytes], object]] = {
    "sequence_number": (re.compile(rb'"sequence_number": ?([0-9]+)'), 7),
    "obfuscation": (re.compile(rb'"obfuscation": ?"([^"]*)"'), "x"),
    "p": (re.compile(rb'"p": ?"([^"]*)"'), "x"),
}
_PADDING = ("obfuscation", "p")
_KEYS = frozenset[str]().union(*(api.delta_text_keys for api in APIS.values()))
_MARK = "another text"
_MAX_TEMPLATES = 4
_FIRST_LEARNED = 4
# Maximum size, in bytes, of a frame that can become a template.
_MAX_LEARNED = 16_384
# Number of matching frames after which the count of unknown frames starts again (rule 4).
_ENOUGH_REPEATS = 8
# If a stream has no template after this number of unknown frames, no more attempts are made to create one.
_MAX_UNKNOWN = 64


@dataclass(slots=True, eq=False)
class Template:
    """The constant parts of a frame. Only the text and, optionally, a number before it and a word after it vary.

    A frame consists of ``head number middle text tail word end``. ``number`` is a sequence number. ``word`` is either
    padding, or a sequence number that follows the text.
    """

    event: ServerSentEvent
    """The parsed document. Its text is at ``place[key]``."""
    place: dict[str, Any]
    key: str
    head: bytes
    middle: str
    """The constant part of the frame between its number and its text, or "" if it has no number."""
    tail: str
    """The constant part of the frame between its text and its word, or "" if it has no word."""
    end: bytes
    between: str
    """``end`` followed by ``head``: the text between two frames that arrive together."""
    are_words: Callable[[str], object]
    """A function that checks the words of several frames, joined by commas, and returns None if any word is invalid."""

    def with_text(self, text: str) -> ServerSentEvent:
        """Return the parsed event of a frame with the given text. The same object is returned for all frames (rule 3 in
        the module docstring).
        """
        self.place[self.key] = text
        return self.event

    def texts(self, data: bytes) -> list[str] | None:
        """Return the text of each frame in ``data``, or None if any frame does not match the template."""
        if not data.startswith(self.head) or not data.endswith(self.end):
            return None
        try:
            texts = data[len(self.head) : -len(self.end)].decode().split(self.between)
        except UnicodeDecodeError:
            return None
        if self.middle:
            cut = [hole.partition(self.middle) for hole in texts]
            if not _are(_ARE_NUMBERS, [number for number, _, _ in cut]):
                return None
            texts = [text for _, _, text in cut]
        if self.tail:
            cut = [hole.partition(self.tail) for hole in texts]
            # If the tail is missing, "?", which is never a valid word, makes this check fail.
            if not _are(self.are_words, [word if found else "?" for _, found, word in cut]):
                return None
            texts = [text for text, _, _ in cut]
        return meanings(texts)


def _are(pattern: Callable[[str], object], values: list[str]) -> bool:
    """Return whether each of the ``values`` is valid. ``pattern`` checks all values at once, joined by commas."""
    joined = ",".join(values)
    return pattern(joined) is not None and joined.count(",") == len(values) - 1


def meanings(texts: list[str]) -> list[str] | None:
    """Decode the contents of several JSON strings. Return None if any of them is empty, is invalid, or contains an
    escaped surrogate.
    """
    joined = "".join(texts)
    if "" in texts:
        return None
    if '"' not in joined and "\\" not in joined and joined.isprintable():
        return texts  # Nearly all texts contain neither escapes nor characters that need an escape.
    return json.loads(f'["{'","'.join(texts)}"]') if all(map(_IS_TEXT, texts)) else None


@dataclass(slots=True)
class Repeats:
    """The texts of consecutive frames that match the same template."""

    template: Template
    texts: list[str]


class RepeatDecoder:
    """An ``SSEDecoder`` that returns ``Repeats`` for frames that match a template."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._decoder = SSEDecoder(limit)
        self._between_frames = False
        self._templates: list[Template] = []
        self._unknown = 0
        # The last frame, if it matches no template. It can become a template, but only after its event has been
        # yielded.
        self._pending = b""
        self._until_learned = self._learning_interval = _FIRST_LEARNED
        self._repeats = 0  # Number of matching frames since a template was last created.

    def feed(self, data: bytes) -> Iterable[ServerSentEvent | Repeats]:
        """Return the events that ``data`` completes; ``b""`` ends the input. The caller must consume all events."""
        if self._pending:
            self._learn_pending()
        repeats = self._repeat(data)
        return self._frames(data) if repeats is None else (repeats,)

    def _frames(self, data: bytes) -> Iterator[ServerSentEvent | Repeats]:
        at = 0
        run: Repeats | None = None
        while at < len(data) and (self._templates or self._unknown < _MAX_UNKNOWN):
            end = data.find(_BLANK_LINE, at) + len(_BLANK_LINE)
            if end < len(_BLANK_LINE):
                break
            frame, at = data[at:end], end
            repeat = self._repeat(frame)
            if repeat is not None and run is not None and run.template is repeat.template:
                run.texts += repeat.texts
                continue
            if run is not None:
                yield run
            run = repeat
            if repeat is not None:
                continue
            was_between_frames = self._between_frames
            yield from self._read(frame)
            if was_between_frames:
                self._pending = frame
                if at < len(data):
                    self._learn_pending()
        if run is not None:
            yield run
        if at < len(data) or not data:
            yield from self._read(data[at:])

    def _read(self, data: bytes) -> list[ServerSentEvent]:
        events = self._decoder.feed(data)
        self._between_frames = self._decoder.between_frames
        return events

    def _repeat(self, data: bytes) -> Repeats | None:
        """Return the texts of the frames in ``data`` if all of them match the same template, otherwise None.

        The template that matched most recently is tried first.
        """
        if not self._between_frames:
            return None
        for number, template in enumerate(self._templates):
            if (texts := template.texts(data)) is not None:
                self._repeats += 1
                if number:
                    self._templates.insert(0, self._templates.pop(number))
                return Repeats(template, texts)
        return None

    def _learn_pending(self) -> None:
        """Count a frame that matches no template, and make it a template if a new template is due (rule 4 in the module
        docstring).
        """
        frame, self._pending = self._pending, b""
        self._unknown += 1
        if self._repeats >= _ENOUGH_REPEATS:
            self._repeats = 0
            self._until_learned = self._learning_interval = _FIRST_LEARNED
        self._until_learned -= 1
        if self._until_learned:
            return
        self._until_learned = self._learning_interval
        self._learning_interval *= 2
        if len(frame) <= _MAX_LEARNED and (template := learned(frame)) is not None:
            self._templates = [template, *self._templates[: _MAX_TEMPLATES - 1]]


class RepeatReader:
    """Converts a stream's bytes to backend events. ``reader`` is not called for frames that match a template (rule 5 in
    the module docstring).
    """

    def __init__(self, reader: Reader, limit: int = MAX_EVENT_BYTES) -> None:
        self._reader = reader
        self._decoder = RepeatDecoder(limit)
        # For each template, the delta that the reader returned for a frame that matched the template (rule 5 in the
        # module docstring). For later frames, this delta is copied and its text is replaced.
        self._alike: dict[Template, TextDelta | ReasoningDelta | StructuredDelta] = {}

    def feed(self, data: bytes) -> Iterator[Sequence[BackendEvent]]:
        """Yield the events that ``data`` completes, grouped by frame; ``b""`` marks the end of input."""
        return map(self._events, self._decoder.feed(data))

    def _events(self, item: ServerSentEvent | Repeats) -> Sequence[BackendEvent]:
        if isinstance(item, Repeats):
            return self._repeats(item)
        self._alike.clear()
        return self._reader.event(item)

    def _repeats(self, repeats: Repeats) -> Sequence[BackendEvent]:
        template, texts = repeats.template, repeats.texts
        read: list[BackendEvent] = []
        for at, text in enumerate(texts):
            if (like := self._alike.get(template)) is not None:
                read.append(self._like(like, texts[at:]))
                break
            events = self._reader.event(template.with_text(text))
            match events:
                case [TextDelta() | ReasoningDelta() | StructuredDelta(is_first=False, is_named=False) as delta] if (
                    delta.text == text
                ):
                    self._alike[template] = delta
                case _:
                    # The frame might have started a call or a message, so the reader might interpret the next frame
                    # differently.
                    self._alike.clear()
                    if events:  # The events might refer to the template's document, whose text will be replaced.
                        events = deepcopy(events)
            read += events
        return read

    def _like(self, like: TextDelta | ReasoningDelta | StructuredDelta, texts: list[str]) -> BackendEvent:
        """Return a copy of the delta ``like``, with the joined ``texts`` as its text."""
        text = "".join(texts)
        match like:
            case TextDelta(choice=choice):
                return TextDelta(text, choice)
            case ReasoningDelta(kind=kind, choice=choice):
                return ReasoningDelta(text, kind, choice)
            case StructuredDelta(key=key, name=name, namespace=namespace, choice=choice):
                self._reader.follow(like, texts)
                return StructuredDelta(key, name, text, False, namespace, choice)


def learned(frame: bytes) -> Template | None:
    """Return a template made from one complete frame, or None if the frame is not suitable."""
    parts = _FRAME(frame)
    if parts is None:
        return None
    source = parts[2]
    try:
        name = (parts[1] or b"").decode()
    except UnicodeDecodeError:
        return None
    document = _loaded(source)
    found = _place(document)
    if document is None or found is None:
        return None
    place, key = found
    text, place[key] = place[key], _MARK
    for opening in re.finditer(rb'"%s": ?"' % key.encode(), source):
        start = opening.end()
        after = _TEXT_AT(source, start).end()  # type: ignore[union-attr]  # The pattern matches everywhere.
        if _loaded(source[:start] + _MARK.encode() + source[after:]) == document:
            break
    else:
        return None
    place[key] = text
    number = _hole("sequence_number", source, document, 0, start)
    words = (_hole(key, source, document, after, len(source)) for key in _PADDING)
    word, are_words = next(filter(None, words), None), _ARE_WORDS
    if word is None and number is None:
        word, are_words = _hole("sequence_number", source, document, after, len(source)), _ARE_NUMBERS
    offset = parts.start(2)
    head = frame[: offset + (number.start(1) if number else start)]
    end = frame[offset + (word.end(1) if word else after) :]
    return Template(
        ServerSentEvent(name, source.decode(), document=document),
        place,
        key,
        head=head,
        middle=source[number.end(1) : start].decode() if number else "",
        tail=source[after : word.start(1)].decode() if word else "",
        end=end,
        between=(end + head).decode(),
        are_words=are_words,
    )


def _hole(key: str, source: bytes, document: dict[str, Any], start: int, end: int) -> re.Match[bytes] | None:
    """Find the value of ``key``, a field that can differ between frames. Return None if the document has no such
    top-level field between ``start`` and ``end``.
    """
    pattern, other = _HOLES[key]
    found = pattern.search(source, start, end)
    if found is None:
        return None
    changed = b"%b%b%b" % (source[: found.start(1)], str(other).encode(), source[found.end(1) :])
    return found if _loaded(changed) == {**document, key: other} else None


def _loaded(source: bytes) -> dict[str, Any] | None:
    try:
        document = load(source.decode())
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _place(document: dict[str, Any] | None) -> tuple[dict[str, Any], str] | None:
    """Return the object and the key under which a document contains its text. Return None unless the document contains
    exactly one text.
    """
    match document:
        case {"choices": [{"delta": dict() as delta}]} | {"delta": dict() as delta}:
            match delta.get("tool_calls"):
                case [{"function": {"arguments": str(piece)} as function}] if piece and not _texts(delta):
                    return function, "arguments"
        case {"delta": str(delta)} if delta:
            assert document is not None
            return document, "delta"
        case _:
            return None
    keys = _texts(delta)
    return (delta, keys[0]) if len(keys) == 1 else None


def _texts(delta: dict[str, Any]) -> list[str]:
    return [key for key in _KEYS if isinstance(delta.get(key), str) and delta[key]]
