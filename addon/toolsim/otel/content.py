"""Adds prompts and answers to spans, if the operator has enabled this.

When a span ends, its content is recorded as bytes. Parsing and redacting the content take up to a second, so they
happen in the exporter's thread. The total size of the recorded bytes is limited. If the limit is exceeded, the oldest
spans are exported without their content. The prompt and the model's text are recorded verbatim, with the tool manifest
inside a message and calls as text.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mitmproxy.http import HTTPFlow
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Span

from toolsim.core.conversation import (
    Call,
    CallOutput,
    Declaration,
    HostedItem,
    Image,
    Item,
    Message,
    Part,
    Text,
    Thought,
)
from toolsim.core.events import StructuredCall
from toolsim.mcp.outcome import ToolOutcome
from toolsim.otel import conventions
from toolsim.pages.read_answer import Piece, TextBlock, read_answer
from toolsim.pages.show_request import read_conversation
from toolsim.proxy.head import by_name
from toolsim.recordings.redact import Redactor
from toolsim.wire.hosted_items import ServedCall
from toolsim.wire.json_codec import dump, parse_object

VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
# Values from older and newer versions of the conventions. The last value also enables events, which toolsim does not
# create.
_ON = ("true", "1", "span_only", "span_and_event")

MAX_BYTES = 64 * 1024 * 1024
"""Maximum total size of the content that has been recorded but not exported, in bytes."""


def is_asked_for(environment: Mapping[str, str]) -> bool:
    """Return whether an environment variable enables the recording of content.

    The OpenTelemetry conventions define the variable and its values.
    """
    return environment.get(VARIABLE, "").strip().lower() in _ON


@dataclass(frozen=True, slots=True)
class _Turn:
    """The request that was sent to a model, and the backend's answer."""

    headers: tuple[tuple[str, str], ...]
    path: str
    request: bytes
    answer: bytes

    def __len__(self) -> int:
        return len(self.request) + len(self.answer)

    def read(self, redactor: Redactor) -> Iterator[tuple[str, Any]]:
        redactor.learn(self.headers, self.path)
        yield conventions.INPUT, [_message(item) for item in read_conversation(self.request)]
        answer = read_answer(self.answer)
        yield (
            conventions.OUTPUT,
            [
                {
                    "role": "assistant",
                    "parts": [_piece(piece) for piece in pieces],
                    "finish_reason": answer.reasons.get(choice, "stop" if answer.whole else "error"),
                }
                for choice, pieces in sorted(answer.pieces.items())
            ],
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """A call to an MCP tool, and the call's outcome as the model sees it."""

    arguments: str
    result: str | None

    def __len__(self) -> int:
        return len(self.arguments) + len(self.result or "")

    def read(self, redactor: Redactor) -> Iterator[tuple[str, Any]]:
        yield conventions.ARGUMENTS, _parsed(self.arguments)
        if self.result is not None:
            yield conventions.RESULT, _parsed(self.result)


class Content:
    """The recorded content of spans that have ended but have not been exported yet.

    Content is recorded only if ``is_on`` is true.
    """

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self._noted: OrderedDict[int, _Turn | _Call] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()  # Content is added on the event loop and removed in the exporter's thread.

    def of_turn(self, span: Span, flow: HTTPFlow, answer: bytes) -> None:
        """Record a request to a model, and the backend's answer, as the content of a span."""
        if self.is_on and span.is_recording():
            request = flow.request
            headers = tuple(by_name(request.headers).items())
            self._note(span, _Turn(headers, request.path, request.raw_content or b"", answer))

    def of_call(self, span: Span, call: ServedCall, outcome: ToolOutcome) -> None:
        """Record the arguments and the outcome of a tool call as the content of a span."""
        if self.is_on and span.is_recording():
            self._note(span, _Call(call.arguments, outcome.output))

    def _note(self, span: Span, said: _Turn | _Call) -> None:
        with self._lock:
            self._noted[span.get_span_context().span_id] = said
            self._size += len(said)
            while self._size > MAX_BYTES:
                self._size -= len(self._noted.popitem(last=False)[1])

    def filled(self, span: ReadableSpan) -> ReadableSpan:
        """Redact the content of a span, and return the span with this content. Called in the exporter's thread."""
        with self._lock:
            said = self._noted.pop(span.context.span_id, None) if span.context is not None else None
            self._size -= 0 if said is None else len(said)
        if said is None:
            return span
        redactor = Redactor()
        try:
            found = {name: _text(redactor.value(value)) for name, value in said.read(redactor)}
        except RecursionError:
            # The content is nested too deeply to be redacted, so the span is exported without it.
            return span
        return ReadableSpan(
            span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes={**(span.attributes or {}), **found},
            events=span.events,
            links=span.links,
            kind=span.kind,
            status=span.status,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )


def _message(item: Item) -> dict[str, Any]:
    """Return an item of a request as a message in the format of the conventions."""
    match item:
        case Message():
            named = {"name": item.name} if item.name else {}
            return {"role": item.role, "parts": [_part(part) for part in item.parts], **named}
        case Call():
            call = {"type": "tool_call", "id": item.call_id, "name": item.name, "arguments": _parsed(item.arguments)}
            return {"role": "assistant", "parts": [call]}
        case CallOutput():
            output = [part.text for part in item.parts if isinstance(part, Text)]
            answered = {"type": "tool_call_response", "id": item.call_id, "response": _parsed("\n".join(output))}
            return {"role": "tool", "parts": [answered]}
        case Thought():
            return {"role": "assistant", "parts": [{"type": "reasoning", "content": item.text}]}
        case HostedItem():
            return {"role": "assistant", "parts": [{"type": item.kind}]}
        case Declaration():
            names = [tool.name for tool in item.tools]
            return {"role": "developer", "parts": [{"type": "additional_tools", "content": ", ".join(names)}]}


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "content": part.text}
        case Image() if part.url.startswith("data:"):
            # The image is left out, because images take megabytes and cannot be viewed in a trace.
            return {"type": "blob", "modality": "image", "content": ""}
        case Image():
            return {"type": "uri", "modality": "image", "uri": part.url}
        case _:
            return {"type": str(part.part.get("type"))[: conventions.MAX_NAME]}


def _piece(piece: Piece) -> dict[str, Any]:
    match piece:
        case TextBlock():
            return {"type": "reasoning" if piece.kind == "reasoning" else "text", "content": piece.text}
        case StructuredCall():
            called = {"id": piece.call_id, "name": piece.name, "arguments": _parsed(piece.arguments)}
            return {"type": "tool_call", **called}
        case _:
            return {"type": str(piece.item.get("type"))[: conventions.MAX_NAME]}


def _parsed(text: str) -> Any:
    """Return the JSON object that a text contains, or the text itself if it is not a JSON object."""
    found = parse_object(text.encode("utf-8", "surrogatepass")) if text.lstrip().startswith("{") else None
    return text if found is None else found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dump(value)
