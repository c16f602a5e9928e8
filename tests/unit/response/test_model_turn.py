from __future__ import annotations

import pytest
from support.answers import plan, tool
from support.wire import backend_answer
from toolsimlib.errors import ApiError
from toolsimlib.events import CallStarted, ClientEvent, Ended, Failed, Opened, TextDelta
from toolsimlib.plan import Dialect
from toolsimlib.report import Report
from toolsimlib.response.model_turn import ModelTurn

CALL = '<tool_call>{"name":"f","arguments":"{}"}</tool_call>'


def feed(turn: ModelTurn, data: bytes) -> list[ClientEvent]:
    return [event for step in turn.steps(data) for event in step]


def read(dialect: Dialect, stream: bool, cut: int) -> list[ClientEvent]:
    """Return what a backend's answer says, read in pieces of ``cut`` bytes."""
    kind, body = backend_answer(dialect, stream, ["Hello ", CALL])
    turn = ModelTurn(plan("responses", dialect, True, [tool("f")]), Report(), content_type=kind)
    told = [event for at in range(0, len(body), cut) for event in feed(turn, body[at : at + cut])]
    told += feed(turn, b"")
    assert turn.done
    assert feed(turn, b"") == []
    return told


@pytest.mark.parametrize("dialect", ["responses", "chat"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_turn_says_the_same_however_it_arrives(dialect: Dialect, stream: bool) -> None:
    """Text, call and end, from either API, streamed or whole, at once or byte by byte."""
    told = [each for each in read(dialect, stream, 10**6) if not isinstance(each, Opened)]
    assert told == [each for each in read(dialect, stream, 1) if not isinstance(each, Opened)]
    assert [type(each) for each in told][:2] == [TextDelta, CallStarted]
    assert isinstance(told[-1], Ended)


def test_several_turns_can_share_a_client() -> None:
    """A turn knows nothing of frames: a second one begins anew, and only its own end is told."""
    assert read("chat", True, 7) == read("chat", True, 7)


def test_what_is_no_answer_fails() -> None:
    """A body that is no JSON object, and a reason from outside, end the turn as failed, once."""
    turn = ModelTurn(plan("chat", "chat", False), Report(), content_type="application/json")
    feed(turn, b"<html>")
    (failed,) = feed(turn, b"")
    assert isinstance(failed, Failed)
    assert failed.error.code == "backend_bad_answer"
    assert turn.fail(ApiError("late")) == []


def test_unknown_events_reach_the_report() -> None:
    """Each type once, and no more than a person would read."""
    report = Report()
    turn = ModelTurn(plan("responses", "responses", True), report, content_type="text/event-stream")
    for number in [*range(20), 1]:
        feed(turn, b'data: {"type":"x.%d"}\n\n' % number)
    assert report.warnings[:2] == ["UNKNOWN_EVENT:x.0", "UNKNOWN_EVENT:x.1"]
    assert len(report.warnings) == len(set(report.warnings))
