"""Tests for streams that are passed on byte for byte as long as their text is the requested JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.answers import plan, read
from support.wire import DONE, chat_frame
from toolsim.core.errors import ApiError
from toolsim.core.events import Ended, Opened, TextDelta
from toolsim.core.plan import AnswerForm, Plan
from toolsim.core.policy import ApiName
from toolsim.core.report import Report
from toolsim.response.verbatim import VerbatimRewriter
from toolsim.wire.apis import APIS

GOOD = '{"a": 1}'
PROSE = "It is one."


def checked(*, may_retry: bool = False) -> Plan:
    fields = {"answer_format": {"type": "json_object"}, "json_only": True, "attempts": frozenset({"format"})}
    return replace(plan("chat", "chat", True, **fields), is_verbatim=True, may_retry_json=may_retry)


def rewriter(the_plan: Plan) -> VerbatimRewriter:
    return VerbatimRewriter(the_plan, Report(), content_type="text/event-stream")


def stream(text: str) -> bytes:
    pieces = [b": waiting\n\n", chat_frame("")]
    pieces += [chat_frame(text[start : start + 3]) for start in range(0, len(text), 3)]
    return b"".join([*pieces, chat_frame(None, "stop"), DONE])


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_json_passes_byte_for_byte(size: int) -> None:
    """JSON in the requested format passes through byte for byte, as do the bytes after its end, wherever the stream is
    split.
    """
    data = stream(GOOD) + b"\n: bye\n\n"
    reader = rewriter(checked(may_retry=True))
    out = b"".join(b"".join(reader.feed(data[start : start + size])) for start in range(0, len(data), size))
    out += b"".join(reader.feed(b""))
    assert out == data
    assert reader.is_done
    assert reader.keepalive() == []


def test_keepalive_before_the_text_is_a_comment() -> None:
    """Before the text begins, a keep-alive is sent as a comment, so that the backend's original bytes can still
    follow.
    """
    reader = rewriter(checked())
    assert reader.feed(chat_frame("")) == []
    assert reader.keepalive() == [b": keepalive\n\n"]
    data = chat_frame(GOOD) + chat_frame(None, "stop") + DONE
    assert reader.feed(data) == [chat_frame("") + data]


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_prose_is_withheld(size: int) -> None:
    """If JSON is required, prose is withheld. The stream fails with an error or, if retries are allowed, waits for a
    retry.
    """
    data = stream(PROSE)
    reader = rewriter(checked())
    out = [b"".join(reader.feed(data[start : start + size])) for start in range(0, len(data), size)]
    assert read("chat", True, out).error == "invalid_answer"
    assert b"one" not in b"".join(out)
    reader = rewriter(checked(may_retry=True))
    for start in range(0, len(data), size):
        for _ in reader.steps(data[start : start + size]):
            pass
    assert reader.waits is not None
    assert not reader.is_done


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_invalid_json_is_followed_by_a_separate_error(size: int) -> None:
    """If JSON turns out to be invalid after part of it was sent, all sent events are complete, and the error is a
    separate event.
    """
    for may_retry in (False, True):
        reader, data = rewriter(checked(may_retry=may_retry)), stream("[1, 2, 3]")
        out = [b"".join(reader.feed(data[start : start + size])) for start in range(0, len(data), size)]
        assert read("chat", True, out).error == "invalid_answer"


def test_failure_before_the_text_opens_the_stream() -> None:
    """If the backend fails before its text begins, the client receives the first event of a normal stream and then the
    error.
    """
    reader = rewriter(checked())
    assert reader.feed(chat_frame("")) == []
    assert read("chat", True, reader.feed(b"")).error == "backend_truncated"
    assert reader.feed(b"") == []
    for method in ("fail", "abandon"):
        reader = rewriter(checked())
        assert reader.feed(chat_frame("")) == []
        out = getattr(reader, method)(ApiError("gone", code="gone"))
        assert read("chat", True, out).error == "gone"


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
@pytest.mark.parametrize("api", APIS)
def test_final_error_is_a_single_event(api: ApiName, size: int) -> None:
    """If the answer turns out to be invalid at its end, the error is a single event without any IDs, because the client
    has never received toolsim's IDs.
    """
    fields = {"answer_format": {"type": "json_object"}, "json_only": True, "attempts": frozenset({"format"})}
    the_plan = replace(plan(api, api, True, **fields), is_verbatim=True)
    writer = APIS[api].writer(AnswerForm(model="m", stream=True))
    events = (Opened(), *map(TextDelta, ("[1, ", "2, ", "3]")), Ended({0: "stop"}))
    frames = [frame for event in events for frame in writer.write(event)]
    for data, error in ((b"".join(frames), "invalid_answer"), (b"".join(frames[:-4]), "backend_truncated")):
        reader = rewriter(the_plan)
        out = [b"".join(reader.feed(data[start : start + size])) for start in range(0, len(data), size)]
        out += reader.feed(b"")
        assert read(api, True, out).error == ("api_error" if api == "messages" else error)
        assert b"".join(out).count(b"event: error") == (api != "chat")
        assert reader.feed(b"") == []
