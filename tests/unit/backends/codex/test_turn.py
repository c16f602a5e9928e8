"""Tests for the conversion of Codex's notifications about a turn to backend events."""

from typing import Any

import pytest
from support.each import each
from toolsim.backends.codex.jsonrpc import Notification
from toolsim.backends.codex.turn import CodexTurn
from toolsim.core.events import (
    BackendEvent,
    Closed,
    Counted,
    Failed,
    Finished,
    Opened,
    ReasoningDelta,
    TextDelta,
    Usage,
)


def note(method: str, **params: Any) -> Notification:
    return Notification(method, {"threadId": "t", "turnId": "u", **params})


def started(kind: str, name: str = "i") -> Notification:
    return note("item/started", item={"type": kind, "id": name})


def delta(text: str, item: str = "i") -> Notification:
    return note("item/agentMessage/delta", itemId=item, delta=text)


def counted(n: int) -> Notification:
    return note("thread/tokenUsage/updated", tokenUsage={"total": {"inputTokens": n, "outputTokens": n}})


def ended(status: str = "completed", **error: Any) -> Notification:
    return note("turn/completed", turn={"status": status, "error": error or None})


def play(*notes: Notification) -> list[BackendEvent]:
    turn = CodexTurn("m")
    return [event for notification in notes for event in turn.feed(notification)]


def test_turn_becomes_events() -> None:
    """Notifications about reasoning, text, token usage and the completed turn become events. Other notifications are
    ignored.
    """
    assert play(
        note("warning", message="phantom"),
        started("userMessage"),
        started("reasoning", "r"),
        note("item/reasoning/summaryPartAdded", summaryIndex=0),
        note("item/reasoning/summaryTextDelta", delta="a"),
        note("item/reasoning/summaryPartAdded", summaryIndex=1),
        note("item/reasoning/textDelta", delta="b"),
        note("item/completed", item={"type": "reasoning", "id": "r"}),
        note("mcpServer/startupStatus/updated", name="unknown", status="failed"),
        started("agentMessage"),
        delta("c"),
        delta("d"),
        note("item/completed", item={"type": "agentMessage", "id": "i", "text": "cd"}),
        counted(3),
        ended(),
        delta("too late"),
    ) == [
        Opened(model="m"),
        ReasoningDelta("a"),
        ReasoningDelta("\n\n"),
        ReasoningDelta("b", "text"),
        TextDelta("c"),
        TextDelta("d"),
        Finished("stop"),
        Counted(Usage(input_tokens=3, output_tokens=3)),
        Closed(),
    ]


def test_text_without_deltas_is_taken_from_the_item() -> None:
    """If some or all deltas are missing, the missing text is taken from the completed item."""
    whole = note("item/completed", item={"type": "agentMessage", "id": "i", "text": "abc"})
    assert play(whole, ended())[1] == TextDelta("abc")
    assert play(delta("a"), whole, ended())[1:3] == [TextDelta("a"), TextDelta("bc")]


def test_two_messages_are_separated() -> None:
    """If a turn contains two messages, a blank line separates them."""
    assert play(delta("a"), delta("b", "j"))[1:] == [TextDelta("a"), TextDelta("\n\n"), TextDelta("b")]


def test_repeated_sampling_ends_the_turn() -> None:
    """If Codex queries the model again after the model has written text, the turn ends. If the model has not written
    any text, the turn fails after the third query.
    """
    assert play(delta("a"), counted(1), started("agentMessage", "j"), delta("b", "j"))[-1] == Closed()
    assert play(delta("a"), counted(1), counted(2))[-1] == Closed()
    events = play(counted(1), counted(2), counted(3))
    assert isinstance(events[-1], Failed)
    assert play(counted(1), delta("a"), counted(2), ended())[-1] == Closed()


def test_codex_retry_is_ignored_before_the_first_text() -> None:
    """A retry by Codex is ignored if the model has not written any text yet. Otherwise, the turn fails, because the
    retry would repeat the text.
    """
    retry = note("error", willRetry=True, error={"message": "reconnecting", "codexErrorInfo": None})
    assert play(retry, delta("a"), ended())[-1] == Closed()
    assert isinstance(play(delta("a"), retry)[-1], Failed)


def test_history_compaction_by_codex_is_a_failure() -> None:
    """If Codex compacts the history, the turn fails, because the summary would not contain the tool catalog."""
    [event] = play(started("contextCompaction"))
    assert isinstance(event, Failed)
    assert (event.error.status, event.error.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (ended("interrupted"), (502, "interrupted")),
        (ended("failed"), (502, "server_error")),
        (ended("failed", message="x", codexErrorInfo="usageLimitExceeded"), (429, "insufficient_quota")),
        (note("turn/completed"), (502, "server_error")),
    ],
)
def test_failed_turn_is_an_error(last: Notification, expected: tuple[int, str]) -> None:
    """An interrupted or failed turn ends with an error that has the expected status and code."""
    event = play(delta("a"), last)[-1]
    assert isinstance(event, Failed)
    assert (event.error.status, event.error.code) == expected


@each("text", [[], [delta("a")]], ids=["before the first word", "after it"])
@each("will_retry", [None, False, True])
@each(("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("other", None)])
def test_truncated_answer_is_not_a_failure(
    text: list[Notification], will_retry: bool | None, reason: str, finish: str | None
) -> None:
    """If the model's answer is truncated, its text is kept, and it ends with the corresponding finish reason. It does
    not count as a failure, because a retry would be truncated as well.
    """
    error = {"message": f"Incomplete response returned, reason: {reason}", "codexErrorInfo": "other"}
    cut = ended("failed", **error) if will_retry is None else note("error", error=error, willRetry=will_retry)
    events = play(*text, cut)
    if finish:
        assert events[-2:] == [Finished(finish), Closed()]  # type: ignore[arg-type]
    elif will_retry and not text:
        assert events == []
    else:
        assert isinstance(events[-1], Failed)


def test_parameter_named_like_a_truncation_reason_is_an_error() -> None:
    """The truncation reason ``max_output_tokens`` is also the name of a parameter. An error message that mentions the
    parameter is not mistaken for a truncated answer.
    """
    refused = ended("failed", message='{"error":{"message":"bad max_output_tokens"}}', codexErrorInfo="other")
    [event] = play(refused)
    assert isinstance(event, Failed)
    assert event.error.status == 400


def test_final_error_ends_the_turn() -> None:
    """An error that Codex will not retry ends the turn, because some versions of Codex do not send ``turn/completed``
    afterwards.
    """
    [event] = play(note("error", error={"message": "no", "codexErrorInfo": "badRequest"}, willRetry=False))
    assert isinstance(event, Failed)
    assert event.error.status == 400
