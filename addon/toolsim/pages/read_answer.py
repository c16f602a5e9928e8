"""Parses the body of an answer from the backend or from toolsim, whether streamed or not, in any API's format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from toolsim.core.errors import ApiError
from toolsim.core.events import (
    BackendEvent,
    Closed,
    Counted,
    Failed,
    Finished,
    HostedEnded,
    NextMessage,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    TextDelta,
    Usage,
)
from toolsim.response.output_sequencer import EMPTY_LINE
from toolsim.wire.api import Reader
from toolsim.wire.apis import api_of_answer, api_of_event
from toolsim.wire.errors import read_error
from toolsim.wire.json_codec import parse_object
from toolsim.wire.sse import ServerSentEvent, SSEDecoder


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Consecutive text of one kind: "text", "reasoning" or "refusal"."""

    kind: str
    text: str


Piece = TextBlock | StructuredCall | PassThrough


@dataclass(slots=True)
class ReadAnswer:
    """The content of an answer."""

    known: bool = False
    """Whether the body has the format of one of the APIs."""
    whole: bool = False
    """Whether the answer is complete."""
    events: int = 0
    """The number of events in a stream, or 0 for a non-streamed body."""
    model: str = ""
    usage: Usage | None = None
    error: ApiError | None = None
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    """The parts of the answer, by the index of the choice."""
    reasons: dict[int, str] = field(default_factory=dict)
    """The finish reasons, by the index of the choice."""

    @property
    def calls(self) -> list[StructuredCall]:
        """The calls in all choices, in order."""
        return [piece for pieces in self.pieces.values() for piece in pieces if isinstance(piece, StructuredCall)]

    def text(self, choice: int) -> str:
        """Return the visible text of one choice."""
        return "".join(
            piece.text for piece in self.pieces.get(choice, []) if isinstance(piece, TextBlock) and piece.kind == "text"
        )


def read_answer(data: bytes) -> ReadAnswer:
    """Parse the body of an answer. If its format is unknown, ``known`` is false. Never raises an exception."""
    head = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    answer = ReadAnswer()
    if head.startswith(b"{"):
        _gather(answer, _whole(data))
    elif b":" in head:
        _gather(answer, _stream(data, answer))
    return answer


def _whole(data: bytes) -> Iterable[BackendEvent]:
    body = parse_object(data)
    if body is None:
        return []
    if api := api_of_answer(body):
        return api.reader().whole(body)
    return [Failed(read_error(body["error"]))] if body.get("error") else []


def _stream(data: bytes, answer: ReadAnswer) -> Iterator[BackendEvent]:
    decoder = SSEDecoder()
    frames = decoder.feed(data) + decoder.feed(b"")
    reader: Reader | None = None
    for frame in frames:
        reader = reader or _reader_for(frame)
        if reader is not None:
            answer.events += 1
            yield from reader.event(frame)
    if reader is not None:
        yield from reader.end()


def _reader_for(frame: ServerSentEvent) -> Reader | None:
    """Detect the API of a stream by its first event. Return a reader for that API, or None if the API is unclear."""
    chunk = parse_object(frame.data.encode())
    api = api_of_event(frame.event, chunk) if chunk is not None else None
    return api.reader() if api else None


def _gather(answer: ReadAnswer, events: Iterable[BackendEvent]) -> None:
    runs: dict[int, _Run] = {}
    for event in events:
        answer.known = True
        match event:
            case TextDelta() | RefusalDelta() | ReasoningDelta():
                kind = _KINDS[type(event)]
                runs.setdefault(event.choice, _Run(answer, event.choice)).add_text(kind, event.text)
            case NextMessage():
                runs.setdefault(0, _Run(answer, 0)).next_message()
            case StructuredCall():
                runs.setdefault(event.choice, _Run(answer, event.choice)).add(event)
            case PassThrough():
                runs.setdefault(0, _Run(answer, 0)).add(event)
            case HostedEnded(item=item):
                runs.setdefault(0, _Run(answer, 0)).add(PassThrough(item))
            case Opened():
                answer.model = event.model or answer.model
            case Counted():
                answer.usage = event.usage
            case Finished():
                answer.reasons[event.choice] = event.reason
            case Closed():
                answer.whole = True
            case Failed():
                answer.error = event.error
    for run in runs.values():
        run.close()


_KINDS: dict[type, str] = {TextDelta: "text", RefusalDelta: "refusal", ReasoningDelta: "reasoning"}


class _Run:
    """Collects the parts of one choice. Consecutive deltas of the same kind are joined, in linear time."""

    def __init__(self, answer: ReadAnswer, choice: int) -> None:
        self._pieces = answer.pieces.setdefault(choice, [])
        self._kind = ""
        self._texts: list[str] = []

    def add_text(self, kind: str, text: str) -> None:
        if kind != self._kind:
            self.close()
            self._kind = kind
        self._texts.append(text)

    def next_message(self) -> None:
        """Separate the texts of two messages with an empty line, as in the answers that toolsim writes."""
        if self._kind == "text":
            self._texts.append(EMPTY_LINE)

    def add(self, piece: StructuredCall | PassThrough) -> None:
        self.close()
        self._pieces.append(piece)

    def close(self) -> None:
        if self._texts:
            self._pieces.append(TextBlock(self._kind, "".join(self._texts)))
        self._kind, self._texts = "", []
