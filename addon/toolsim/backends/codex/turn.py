"""Converts the notifications of one Codex turn to backend events, without I/O.

A Codex turn can query the model several times (each query is a *sampling*). When the model calls a tool, Codex answers
the call and samples again. toolsim needs only one sampling, and all tools are disabled. If the model calls a tool
anyway, Codex answers with an error and samples again, without end if the model continues to call tools. Therefore:

- ``thread/tokenUsage/updated`` ends a sampling. If there was text, the text is the answer, and the turn is closed at
  the first sign of another sampling. If there was no text, up to ``MAX_SAMPLINGS`` samplings are allowed.
- ``item/agentMessage/delta`` contains the text. ``item/completed`` repeats the entire text, including any text that the
  deltas omitted.
- ``error`` with ``willRetry`` means that Codex lost the connection to the model's server and restarts the answer.
  Before the first text, the restart has no effect. After the first text, it is treated as a failure, because the text
  would arrive twice. Without ``willRetry``, the turn has failed. Some versions send no further notification.
- A ``contextCompaction`` item means that Codex is replacing the history, including the tool catalog, with its own
  summary. This is treated as a failure, as if the conversation had exceeded the model's own limit.
- ``turn/completed`` ends the turn. If the answer ended because of a token limit or a content filter, Codex reports a
  failed turn, and the message quotes the reason from the model's server. For the client, the answer ends normally with
  this reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolsim.backends.codex.errors import CONTEXT_EXCEEDED, turn_error
from toolsim.backends.codex.jsonrpc import Notification
from toolsim.core.errors import ApiError
from toolsim.core.events import (
    BackendEvent,
    Closed,
    Counted,
    Failed,
    Finished,
    FinishReason,
    Opened,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from toolsim.wire.json_fields import count, mapping, string

MAX_SAMPLINGS = 3

_CUT_REASONS: Mapping[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}
_INCOMPLETE = re.compile(rf"Incomplete response\b.*\breason: ({'|'.join(_CUT_REASONS)})\b")


class CodexTurn:
    """Converts the notifications of a turn to events.

    ``is_done`` is true once ``Closed`` or ``Failed`` has been returned.
    """

    def __init__(self, model: str | None) -> None:
        self.is_done = False
        self.is_opened = False
        self._model = model
        # The number of characters returned so far for each message item.
        self._emitted: dict[str, int] = {}
        self._samplings = 0
        self._usage: Usage | None = None

    def open(self) -> list[BackendEvent]:
        """Return the event that announces the answer. Later calls return an empty list."""
        if self.is_opened:
            return []
        self.is_opened = True
        return [Opened(model=self._model)]

    def feed(self, notification: Notification) -> list[BackendEvent]:
        """Return the events for one notification. For most notifications, the list is empty."""
        if self.is_done:
            return []
        params = notification.params
        match notification.method:
            case "item/started":
                return self._item_started(mapping(params.get("item")))
            case "item/agentMessage/delta":
                return self._text(string(params.get("itemId")), string(params.get("delta")))
            case "item/completed":
                return self._item_completed(mapping(params.get("item")))
            case "item/reasoning/summaryTextDelta" if delta := string(params.get("delta")):
                return [*self.open(), ReasoningDelta(delta)]
            case "item/reasoning/textDelta" if delta := string(params.get("delta")):
                return [*self.open(), ReasoningDelta(delta, "text")]
            case "item/reasoning/summaryPartAdded" if params.get("summaryIndex"):
                return [*self.open(), ReasoningDelta("\n\n")]
            case "thread/tokenUsage/updated":
                self._usage = _usage(mapping(mapping(params.get("tokenUsage")).get("total")))
                self._samplings += 1
                return self._check_samplings() if self._samplings > 1 else []
            case "error":
                return self._error_notification(params)
            case "turn/completed":
                return self._completed(mapping(params.get("turn")))
        return []

    def fail(self, error: ApiError) -> list[BackendEvent]:
        """Return the events that end the answer with an error."""
        self.is_done = True
        return [Failed(error)]

    def _item_started(self, item: Mapping[str, Any]) -> list[BackendEvent]:
        match item.get("type"):
            case "contextCompaction":
                return self.fail(CONTEXT_EXCEEDED)
            case "userMessage":
                return []
        return (self._check_samplings() if self._samplings else []) or self.open()

    def _item_completed(self, item: Mapping[str, Any]) -> list[BackendEvent]:
        if item.get("type") != "agentMessage":
            return []
        item_id = string(item.get("id"))
        return self._text(item_id, string(item.get("text"))[self._emitted.get(item_id, 0) :])

    def _check_samplings(self) -> list[BackendEvent]:
        if self._emitted:
            return self._close("stop")
        if self._samplings >= MAX_SAMPLINGS:
            message = "The model called only tools that were not offered."
            return self.fail(ApiError(message, code="no_text", status=502))
        return []

    def _text(self, item_id: str, text: str) -> list[BackendEvent]:
        if not text:
            return []
        gap = [TextDelta("\n\n")] if self._emitted and item_id not in self._emitted else []
        self._emitted[item_id] = self._emitted.get(item_id, 0) + len(text)
        return [*self.open(), *gap, TextDelta(text)]

    def _error_notification(self, params: Mapping[str, Any]) -> list[BackendEvent]:
        error = mapping(params.get("error"))
        if params.get("willRetry") is True and not self._emitted and not _cut_reason(error):
            return []
        return self._failed(error)

    def _completed(self, turn: Mapping[str, Any]) -> list[BackendEvent]:
        match turn.get("status"):
            case "completed":
                return self._close("stop")
            case "interrupted":
                return self.fail(ApiError("The turn was interrupted.", code="interrupted", status=502, retry_after=1))
        return self._failed(mapping(turn.get("error")))

    def _failed(self, error: Mapping[str, Any]) -> list[BackendEvent]:
        reason = _cut_reason(error)
        return self._close(reason) if reason else self.fail(turn_error(error))

    def _close(self, reason: FinishReason) -> list[BackendEvent]:
        self.is_done = True
        counted = [Counted(self._usage)] if self._usage else []
        return [*self.open(), Finished(reason), *counted, Closed()]


def _cut_reason(error: Mapping[str, Any]) -> FinishReason | None:
    """Return why the model's server truncated the answer, or None if the error is about something else."""
    found = _INCOMPLETE.search(string(error.get("message")))
    return _CUT_REASONS[found[1]] if found else None


def _usage(total: Mapping[str, Any]) -> Usage | None:
    usage = Usage(
        input_tokens=count(total, "inputTokens"),
        output_tokens=count(total, "outputTokens"),
        total_tokens=count(total, "totalTokens"),
        cached_tokens=count(total, "cachedInputTokens"),
        reasoning_tokens=count(total, "reasoningOutputTokens"),
    )
    return usage if usage.input_tokens or usage.output_tokens else None
