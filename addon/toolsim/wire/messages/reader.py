"""Converts a Messages backend's answer, streamed or not, to backend events.

    stream  := message_start block* message_delta message_stop      (ping and error anywhere)
    block   := content_block_start content_block_delta* content_block_stop

1. ``message_stop`` is the terminator. A stream that ends without it is complete if it has a stop reason.
2. The text of a block can already be in its start event, where some gateways put the entire text.
3. A call's arguments are in its deltas or, if it has no deltas, in the ``input`` of its start event.
4. Input tokens are in ``message_start``, and output tokens are in ``message_delta``. If a count is sent several times,
   the last value is valid. Unlike in every other API, the input tokens do not include cached tokens.
5. Clients have to return reasoning to Anthropic's server, either with the signature that follows it or, if it is
   encrypted, unchanged (``redacted_thinking``). The signature and the encrypted reasoning are passed on as progress of
   an item that was never announced (``PROOF``), which only the writer of this API handles.
6. Other features that only this API has (citations, the blocks of the server's own tools) are not passed on. Unknown
   types of blocks and deltas are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, override

from toolsim.core.events import (
    BackendEvent,
    Closed,
    Counted,
    Finished,
    FinishReason,
    HostedProgress,
    Opened,
    ReasoningDelta,
    StructuredCall,
    StructuredCallStarted,
    StructuredDelta,
    TextDelta,
    Usage,
)
from toolsim.wire.api import Reader
from toolsim.wire.errors import no_answer, read_error
from toolsim.wire.json_codec import Joiner, dump_as_read
from toolsim.wire.json_fields import count, mapping, mappings, string

_REASONS: Mapping[str, FinishReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
PROOF = "thinking"
"""Key of the progress events that contain signatures and encrypted reasoning (rule 5 in the module docstring)."""

# Types of the blocks for tools that the backend runs.
_SILENT_BLOCKS = ("server_tool_use", "mcp_tool_use")
_SILENT_DELTA = "citations_delta"
_SILENT_EVENTS = ("ping", "message_start", "content_block_stop")


@dataclass(slots=True)
class _Block:
    """A block that has started but not ended."""

    kind: str
    name: str = ""
    call_id: str = ""
    input: Mapping[str, Any] = field(default_factory=dict)
    """Arguments in the start event of a call (rule 3 in the module docstring)."""
    pieces: list[str] = field(default_factory=list)
    """Fragments of a call's arguments, without the empty fragments that many servers send first."""


class MessagesReader(Reader):
    """Converts one Messages answer to backend events."""

    def __init__(self) -> None:
        super().__init__()
        self._opened = False
        self._blocks: dict[int, _Block] = {}
        self._reason = ""
        self._counts: dict[str, int] = {}
        self._joined: Joiner[int] = Joiner()

    @override
    def _read(self, data: dict[str, Any], name: str) -> list[BackendEvent]:
        kind = string(data.get("type")) or name
        index = count(data, "index")
        match kind:
            case "message_start":
                return self._open(mapping(data.get("message")))
            case "content_block_start":
                return self._begin(index, mapping(data.get("content_block")))
            case "content_block_delta":
                return self._delta(index, mapping(data.get("delta")))
            case "content_block_stop":
                return self._stop(index, whole=True)
            case "message_delta":
                self._reason = string(mapping(data.get("delta")).get("stop_reason")) or self._reason
                self._count(mapping(data.get("usage")))
                return []
            case "message_stop":
                return self._close()
            case "error":
                return self._fail(read_error(data.get("error") or data))
        if data.get("error"):
            return self._fail(read_error(data["error"]))
        if kind not in _SILENT_EVENTS:
            self.unknown[kind[:40]] = None
        return []

    @override
    def follow(self, delta: StructuredDelta, texts: Sequence[str]) -> None:
        self._blocks[int(delta.key)].pieces += texts

    @override
    def whole(self, body: Mapping[str, Any]) -> list[BackendEvent]:
        if body.get("error"):
            return self._fail(read_error(body["error"]))
        if not isinstance(body.get("content"), list):
            return self._fail(no_answer(body, "content"))
        events = self._open(body)
        self._reason = string(body.get("stop_reason")) or "end_turn"
        # The token counts come first, so that they are reported even if the turn ends within the text.
        events += self._counted()
        for index, block in enumerate(mappings(body.get("content"))):
            events += self._begin(index, block)
            events += self._stop(index, whole=self._reason not in _REASONS)
        self._closed = True
        return [*events, Finished(_REASONS.get(self._reason, "stop")), Closed()]

    @override
    def end(self) -> list[BackendEvent]:
        # Without a terminator, the stream is complete if it has a stop reason (rule 1).
        return [] if self._closed or not self._reason else self._close()

    def _open(self, message: Mapping[str, Any]) -> list[BackendEvent]:
        self._count(mapping(message.get("usage")))
        if self._opened:
            return []
        self._opened = True
        return [Opened(model=string(message.get("model")) or None)]

    def _begin(self, index: int, block: Mapping[str, Any]) -> list[BackendEvent]:
        kind = string(block.get("type"))
        open_block = self._blocks[index] = _Block(kind, string(block.get("name")), string(block.get("id")))
        events = self._open({})
        match kind:
            case "text":
                return events + self._text(index, open_block, string(block.get("text")))
            case "thinking":
                events += self._text(index, open_block, string(block.get("thinking")))
                return events + self._signed(index, string(block.get("signature")))
            case "redacted_thinking":
                return [*events, HostedProgress(PROOF, kind, {"data": block.get("data")})]
            case "tool_use":
                open_block.input = mapping(block.get("input"))
                events.append(StructuredCallStarted())
            case _ if kind not in _SILENT_BLOCKS and not kind.endswith("_tool_result"):
                self.unknown[kind[:40]] = None
        return events

    def _delta(self, index: int, delta: Mapping[str, Any]) -> list[BackendEvent]:
        kind = string(delta.get("type"))
        open_block = self._blocks.setdefault(index, _Block("text"))
        match kind:
            case "text_delta":
                return self._text(index, open_block, string(delta.get("text")))
            case "thinking_delta":
                return self._text(index, open_block, string(delta.get("thinking")))
            case "input_json_delta":
                return self._piece(index, open_block, string(delta.get("partial_json")))
            case "signature_delta":
                return self._signed(index, string(delta.get("signature")))
            case _ if kind != _SILENT_DELTA:
                self.unknown[kind[:40]] = None
        return []

    def _text(self, index: int, open_block: _Block, text: str) -> list[BackendEvent]:
        text = self._joined.join(index, text)
        if not text:
            return []
        if open_block.kind == "thinking":
            return [ReasoningDelta(text, "text")]
        # Text with citations arrives as one block per citation, but all blocks together form one text.
        return [TextDelta(text)]

    def _signed(self, index: int, signature: str) -> list[BackendEvent]:
        """Return the events that end a block of reasoning with its signature (rule 5 in the module docstring)."""
        if not signature:
            return []
        rest = self._joined.end(index)
        proof = HostedProgress(PROOF, "signature_delta", {"signature": signature})
        return [*([ReasoningDelta(rest, "text")] if rest else []), proof]

    def _piece(self, index: int, open_block: _Block, text: str) -> list[BackendEvent]:
        if not text:
            return []
        is_first = not open_block.pieces
        open_block.pieces.append(text)
        if not self.streams_ahead or open_block.kind != "tool_use":
            return []
        return [StructuredDelta(str(index), open_block.name, text, is_first)]

    def _stop(self, index: int, *, whole: bool) -> list[BackendEvent]:
        open_block = self._blocks.pop(index, None)
        if open_block is None:
            return []
        events: list[BackendEvent] = []
        if rest := self._joined.end(index):
            events.append(ReasoningDelta(rest, "text") if open_block.kind == "thinking" else TextDelta(rest))
        if open_block.kind == "tool_use":
            # Without deltas, the arguments are in the ``input`` of the start event (rule 3).
            arguments = "".join(open_block.pieces) or dump_as_read(open_block.input)
            key = str(index) if self.streams_ahead and open_block.pieces else ""
            call_id = open_block.call_id or None
            events.append(StructuredCall(open_block.name, arguments, call_id=call_id, whole=whole, key=key))
        return events

    def _close(self) -> list[BackendEvent]:
        self._closed = True
        unfinished = [event for index in sorted(self._blocks) for event in self._stop(index, whole=False)]
        return [*unfinished, *self._counted(), Finished(_REASONS.get(self._reason, "stop")), Closed()]

    def _count(self, usage: Mapping[str, Any]) -> None:
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            if isinstance(usage.get(name), int):
                self._counts[name] = count(usage, name)

    def _counted(self) -> list[BackendEvent]:
        if not self._counts:
            return []
        counts = self._counts
        cached = counts.get("cache_read_input_tokens", 0)
        # Unlike in every other API, the input tokens do not include cached tokens (rule 4).
        sent = counts.get("input_tokens", 0) + cached + counts.get("cache_creation_input_tokens", 0)
        made = counts.get("output_tokens", 0)
        return [Counted(Usage(sent, made, sent + made, cached_tokens=cached))]
