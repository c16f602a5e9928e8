"""Compaction: one opaque item with a summary that replaces a conversation in later requests.

1. A client requests compaction with an item of the type ``compaction_trigger`` at the end of its input (as Codex does
   when its context is full), or through the compaction endpoint (``operations.py``), which adds this item to the input.
2. The model sees the same prompt as in any other turn that must not call tools, followed by an instruction to write a
   summary. Most of the prompt is therefore cached. Calls are still recognized, because the compaction has failed if the
   model calls a tool instead.
3. The answer contains exactly one item, with the summary; reasoning is dropped. If the summary is incomplete, the
   answer has failed and contains no item, because a client that used half a summary would lose the rest of its
   conversation.
4. Clients treat the item as opaque, but any toolsim instance can read it. It is not encrypted, because it contains only
   the client's own conversation, and the client could have written it. A model sees the item as a user message, because
   tools and web pages might have contributed to it.
5. A compaction item from another server is unreadable. Like any unknown item, it is dropped and reported.
6. A stored conversation continues from its last summary. Of all earlier items, only the messages that the model did not
   write remain.
"""

from __future__ import annotations

import binascii
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from io import StringIO
from operator import is_
from typing import Any, override

from toolsim.core.errors import ApiError
from toolsim.core.events import (
    CallStarted,
    ClientEvent,
    Ended,
    Failed,
    HostedEnded,
    HostedProgress,
    HostedStarted,
    KeepAlive,
    Opened,
    TextDelta,
)
from toolsim.core.plan import AnswerForm
from toolsim.wire.json_fields import array, mapping, string
from toolsim.wire.responses.writer import ResponsesWriter

ITEM = "compaction"
TRIGGER = "compaction_trigger"
NO_SUMMARY = ApiError(
    "The model did not write a complete summary, so nothing was compacted.", code="backend_bad_answer", status=502
)

SUMMARY_PROMPT = (
    "Summarise everything above, so that the work can go on for someone who sees nothing of it but the user's own "
    "messages and your summary. Say what was asked for, what was decided, which tools were called and what came of it, "
    "what is still open and what comes next. Names, numbers, paths and quotes stay word for word. "
    "Write the summary and nothing else."
)
_HEADING = "[summary of the conversation so far]"
_MARK = "toolsim:"


def wants_summary(body: Mapping[str, Any]) -> bool:
    """Return whether a request asks for a summary of its conversation instead of an answer."""
    items = array(body.get("input"))
    return bool(items) and mapping(items[-1]).get("type") == TRIGGER


def summary_turn(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that makes the model write the summary.

    The tools are still declared, so that a call in the answer is recognized. However, the model must not call any
    of them, and no answer format is required.
    """
    turn = {key: value for key, value in body.items() if key != "text"}
    return {**turn, "tool_choice": "none", "input": [*body["input"][:-1], {"role": "user", "content": SUMMARY_PROMPT}]}


def since_summary[Item: Mapping[str, Any]](items: Sequence[Item]) -> list[Item]:
    """Return the items of a conversation without the items that its last summary replaces."""
    at = max((place for place, item in enumerate(items) if _summary(item) is not None), default=0)
    return [item for place, item in enumerate(items) if place >= at or remains(item)]


def remains(item: Mapping[str, Any]) -> bool:
    """Return whether compaction retains an item in addition to the summary."""
    return item.get("type") in (None, "message") and item.get("role") != "assistant"


def with_summaries(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request in which toolsim's compaction items are messages, or the same object if it has no such items."""
    items = body.get("input")
    if not isinstance(items, list):
        return body
    readable = [item if (summary := _summary(item)) is None else _words(summary) for item in items]
    return body if all(map(is_, readable, items)) else {**body, "input": readable}


def _words(summary: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": f"{_HEADING}\n{summary}"}


def _summary(item: Any) -> str | None:
    """Return the summary in one of toolsim's compaction items, or None for any other item."""
    if not isinstance(item, dict) or item.get("type") != ITEM:
        return None
    content = string(item.get("encrypted_content"))
    if not content.startswith(_MARK):
        return None
    try:
        return b64decode(content.removeprefix(_MARK), validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return None


class CompactionWriter(ResponsesWriter):
    """Converts client events to an answer whose only item contains the summary. The item is announced when the first
    text arrives, but the summary is sent only when it is complete.
    """

    def __init__(self, form: AnswerForm) -> None:
        super().__init__(form)
        self._summary = StringIO(newline="\n")
        self._item = {"id": f"cmp_{secrets.token_hex(24)}", "type": ITEM, "encrypted_content": ""}
        self._is_announced = False
        self._has_called = False

    @override
    def write(self, event: ClientEvent) -> list[bytes]:
        match event:
            case TextDelta(text=text):
                self._summary.write(text)
                progress = HostedProgress(ITEM, "response.compaction.compacting")
                return self._announced() + super().write(progress)
            case CallStarted():
                self._has_called = True
            case Ended():
                return self._ended(event)
            case Opened() | KeepAlive() | Failed():
                return super().write(event)
            case _:
                pass  # A summary does not include reasoning, refusals or the activity of hosted tools.
        return []

    def _announced(self) -> list[bytes]:
        if self._is_announced:
            return []
        self._is_announced = True
        return super().write(HostedStarted(ITEM, self._item))

    def _ended(self, event: Ended) -> list[bytes]:
        summary = self._summary.getvalue().strip()
        if self._has_called or not summary or event.reasons.get(0, "stop") != "stop":
            return super().write(Failed(NO_SUMMARY))
        content = _MARK + b64encode(summary.encode("utf-8", "surrogatepass")).decode()
        done = super().write(HostedEnded(ITEM, {**self._item, "encrypted_content": content}))
        return done + super().write(event)

    @override
    def _close_hosted(self) -> None:
        if self._hosted_at:
            # An announced item without a summary means that the answer has failed. The final object must not contain
            # the empty item, because the client would treat it as a summary.
            self._hosted_at.clear()
            self._output.clear()
