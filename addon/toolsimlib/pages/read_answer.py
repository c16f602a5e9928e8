"""An answer read back from its bytes, of either dialect, streamed or whole, by whichever side it was written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from toolsimlib.errors import ApiError
from toolsimlib.events import (
    BackendEvent,
    Closed,
    Counted,
    Failed,
    Finished,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    TextDelta,
    Usage,
)
from toolsimlib.pages.json_text import read_object
from toolsimlib.wire.chat.reader import ChatReader
from toolsimlib.wire.errors import read_error
from toolsimlib.wire.responses.reader import ResponsesReader
from toolsimlib.wire.sse import ServerSentEvent, SSEDecoder


@dataclass(frozen=True, slots=True)
class Words:
    """Text of one kind, in the place where it was said: "text", "reasoning" or "refusal"."""

    kind: str
    text: str


Piece = Words | StructuredCall | PassThrough


@dataclass(slots=True)
class ReadAnswer:
    """What an answer says. ``pieces`` by choice, in order; ``reasons`` by choice, as the wire gave them.

    ``known``: the bytes are an answer of one of the two APIs. ``whole``: its terminator was read. ``events``: how many
    events a stream had, 0 for a whole body.
    """

    known: bool = False
    whole: bool = False
    events: int = 0
    model: str = ""
    usage: Usage | None = None
    error: ApiError | None = None
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def calls(self) -> list[StructuredCall]:
        """The calls of all choices, by choice and in order."""
        return [piece for pieces in self.pieces.values() for piece in pieces if isinstance(piece, StructuredCall)]

    def text(self, choice: int) -> str:
        """Return all visible text of one choice."""
        return "".join(
            piece.text for piece in self.pieces.get(choice, []) if isinstance(piece, Words) and piece.kind == "text"
        )


def read_answer(data: bytes) -> ReadAnswer:
    """Read the body of an answer. Never raises; what is no answer gives ``known=False``."""
    head = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    answer = ReadAnswer()
    if head.startswith(b"{"):
        _gather(answer, _whole(data))
    elif b":" in head:
        _gather(answer, _stream(data, answer))
    return answer


def _whole(data: bytes) -> Iterable[BackendEvent]:
    body = read_object(data)
    if body is None:
        return []
    if "choices" in body:
        return ChatReader().whole(body)
    if body.get("object") == "response" or "output" in body:
        return ResponsesReader().whole(body)
    if body.get("error"):
        return [Failed(read_error(body["error"]))]
    return []


def _stream(data: bytes, answer: ReadAnswer) -> Iterator[BackendEvent]:
    decoder = SSEDecoder()
    frames = decoder.feed(data) + decoder.feed(b"")
    reader: ChatReader | ResponsesReader | None = None
    for frame in frames:
        reader = reader or _reader_for(frame)
        if reader is not None:
            answer.events += 1
            yield from reader.event(frame)
    if reader is not None:
        yield from reader.end()


def _reader_for(frame: ServerSentEvent) -> ChatReader | ResponsesReader | None:
    """Tell the dialect by the first event that has one."""
    chunk = read_object(frame.data)
    if chunk is None:
        return None
    kind = chunk.get("type") or frame.event
    if isinstance(kind, str) and kind.startswith("response."):
        return ResponsesReader()
    if "choices" in chunk or chunk.get("error"):
        return ChatReader()
    return None


def _gather(answer: ReadAnswer, events: Iterable[BackendEvent]) -> None:
    runs: dict[int, _Run] = {}
    for event in events:
        answer.known = True
        match event:
            case TextDelta() | RefusalDelta() | ReasoningDelta():
                kind = _KINDS[type(event)]
                runs.setdefault(event.choice, _Run(answer, event.choice)).say(kind, event.text)
            case StructuredCall():
                runs.setdefault(event.choice, _Run(answer, event.choice)).put(event)
            case PassThrough():
                runs.setdefault(0, _Run(answer, 0)).put(event)
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
    """The pieces of one choice; neighbouring deltas of one kind are joined, in linear time."""

    def __init__(self, answer: ReadAnswer, choice: int) -> None:
        self._pieces = answer.pieces.setdefault(choice, [])
        self._kind = ""
        self._texts: list[str] = []

    def say(self, kind: str, text: str) -> None:
        if kind != self._kind:
            self.close()
            self._kind = kind
        self._texts.append(text)

    def put(self, piece: StructuredCall | PassThrough) -> None:
        self.close()
        self._pieces.append(piece)

    def close(self) -> None:
        if self._texts:
            # The halves of a surrogate pair may have come in two deltas; one that stays alone cannot be shown.
            text = "".join(self._texts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            self._pieces.append(Words(self._kind, text))
        self._kind, self._texts = "", []
