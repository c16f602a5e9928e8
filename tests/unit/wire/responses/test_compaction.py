"""Compaction: a request with a compaction trigger, its answer with a single item, and later requests that contain the
item.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from support.answers import rewrite
from support.each import each
from support.wire import backend_answer
from toolsim.core.errors import BadRequest
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import Rewritten, rewrite_request
from toolsim.wire.responses.compaction import NO_SUMMARY, SUMMARY_PROMPT, since_summary, with_summaries
from toolsim.wire.responses.stored import Recalled, References, resolve

HELLO = {"role": "user", "content": "Hello"}
TRIGGER = {"type": "compaction_trigger"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = '<tool_call>{"name":"f","arguments":"{}"}</tool_call>'
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def asked(backend: Any = "chat", *, mode: Any = "inject", **body: Any) -> Rewritten:
    """Return the rewritten request, which asks the backend for a summary."""
    sent = {"model": "m", "input": [HELLO, TRIGGER], "tools": [TOOL], **body}
    policy = Policy(backend=backend, mode=mode)
    data = json.dumps(sent).encode()
    made = rewrite_request("responses", "/v1/responses", data, policy, output_mode=None, report=Report())
    assert made is not None
    return made


def answered(text: str, *, stream: bool, backend: Any = "chat", cut: int = 0, **body: Any) -> list[dict[str, Any]]:
    """Return the client's events if the model answers with ``text``. For a non-streamed answer, return its body
    instead.
    """
    plan = asked(backend, stream=stream, **body).plan
    _, chunks = rewrite(plan, *backend_answer(backend, stream, [text[i : i + 5] for i in range(0, len(text), 5)]), cut)
    if not stream:
        return [json.loads(b"".join(chunks))]
    frames = b"".join(chunks).decode().removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
    return [json.loads(frame.partition("\ndata: ")[2]) for frame in frames]


def item_of(text: str) -> dict[str, Any]:
    [item] = answered(text, stream=False)[0]["output"]
    return dict(item)


@pytest.mark.parametrize("mode", ["inject", "native"])
@pytest.mark.parametrize("backend", ["chat", "responses"])
def test_summary_request_follows_the_conversation(backend: str, mode: str) -> None:
    """The prompt for a summary follows the conversation. The request has no answer format, and forbids calls."""
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
    body = json.loads(asked(backend, mode=mode, text=form, tool_choice="required", parallel_tool_calls=True).body)
    items = body["messages" if backend == "chat" else "input"]
    assert SUMMARY_PROMPT in json.dumps(items[-1])
    assert "Hello" in json.dumps(items)
    assert not any(body.get(key) for key in ("tools", "text", "response_format"))
    is_shown = "CLIENT TOOL CATALOG" in json.dumps(items), "You may call no tool" in json.dumps(items[-1])
    assert is_shown == ((False, False) if (backend, mode) == ("responses", "native") else (True, True))


@pytest.mark.parametrize("backend", ["chat", "responses"])
@pytest.mark.parametrize("cut", [0, 1, 7])
def test_stream_contains_one_item(backend: str, cut: int) -> None:
    """A stream contains exactly one compaction item. The item is empty when it is announced, and contains the summary
    when it is done.
    """
    events = answered("Launch on Tuesday.", stream=True, backend=backend, cut=cut)
    for event in events:
        EVENT.validate_python(event)
    kinds = list(dict.fromkeys(event["type"].removeprefix("response.") for event in events))
    assert kinds == [
        "created", "in_progress", "output_item.added", "compaction.compacting", "output_item.done", "completed"
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    [done] = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    [added] = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert added == {**done, "encrypted_content": ""}
    assert events[-1]["response"]["output"] == [done]
    assert events[-1]["response"]["tools"][0]["name"] == "f"
    assert "Launch on Tuesday." in str(with_summaries({"input": [done]}))


def test_non_streamed_answer_contains_one_item() -> None:
    """A non-streamed answer contains exactly one compaction item of the SDK's type."""
    response = Response.model_validate(answered("Short.", stream=False)[0])
    assert (response.status, [item.type for item in response.output]) == ("completed", ["compaction"])


@each("text", ["", " \n", CALL, f"I look. {CALL}", f"Done so far: nothing. {CALL} {CALL}"])
@each("stream", [True, False])
def test_missing_summary_is_an_error(text: str, stream: bool) -> None:
    """If the model calls a tool or writes no text instead of a summary, the answer is an error, so that the client
    keeps its conversation.
    """
    last = answered(text, stream=stream)[-1]
    error = last["response"]["error"] if stream else last["error"]
    assert error["message"] == NO_SUMMARY.message
    if stream:
        assert (last["type"], last["response"]["output"]) == ("response.failed", [])


def test_reasoning_is_omitted() -> None:
    """The answer contains no reasoning item, because clients expect exactly one item."""
    plan = asked("responses", stream=False).plan
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    content = [{"type": "output_text", "text": "Short.", "annotations": []}]
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
    body = json.dumps({"object": "response", "status": "completed", "output": [reasoning, message]}).encode()
    _, chunks = rewrite(plan, "application/json", body)
    assert [item["type"] for item in json.loads(b"".join(chunks))["output"]] == ["compaction"]


def test_misplaced_trigger_is_an_error() -> None:
    """If the compaction trigger is not the last item, the request is refused with an error that gives the trigger's
    path.
    """
    with pytest.raises(BadRequest, match="must be the last input item") as raised:
        asked(input=[HELLO, TRIGGER, HELLO])
    assert raised.value.error.param == "input[1]"


def test_stored_conversation_continues_from_its_summary() -> None:
    """After a compaction, a stored conversation consists of the summary and of all earlier messages that the model did
    not write.
    """
    said = {"type": "message", "role": "assistant", "id": "msg_1", "content": []}
    first = {"input": [HELLO], "response": {"status": "completed", "output": [said]}}
    body = {"model": "m", "input": [TRIGGER], "previous_response_id": "resp_1"}
    recalled = Recalled(References("resp_1"), (json.dumps(first).encode(),))
    resolved = resolve(body, recalled)
    assert resolved.body["input"] == [HELLO, said, TRIGGER]
    assert (resolved.own, resolved.names) == ([], ())
    item = item_of("Short.")
    second = {"input": [], "response": {"status": "completed", "output": [item]}}
    records = (*recalled.records, json.dumps(second).encode())
    again = resolve({"model": "m", "input": "And?"}, Recalled(References("resp_2"), records))
    assert [shown.get("type") for shown in again.body["input"]] == [None, "compaction", "message"]
    assert since_summary([said, {"type": "compaction", "encrypted_content": "of another server"}])[0] is said


@given(st.text(min_size=1).filter(lambda text: bool(text.strip())))
def test_item_contains_the_summary(text: str) -> None:
    """In later requests, a compaction item is shown to the model as a user message with the summary, regardless of the
    summary's content.
    """
    item = item_of(text)
    shown = with_summaries({"input": [HELLO, item]})["input"]
    assert shown[0] == HELLO
    assert shown[1]["role"] == "user"
    assert shown[1]["content"].partition("\n")[2] == text.strip().encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )


@pytest.mark.parametrize(
    "item",
    [
        {"type": "compaction", "encrypted_content": "gAAAA"},
        {"type": "compaction", "encrypted_content": "toolsim:no base64!"},
        {"type": "compaction"},
        {"type": "message", "encrypted_content": "toolsim:eA=="},
        "toolsim:",
    ],
)
def test_other_requests_are_unchanged(item: Any) -> None:
    """If a request contains no compaction item from toolsim, the original request object is returned."""
    body = {"input": [item]}
    assert with_summaries(body) is body
    assert with_summaries({"input": "x"}) == {"input": "x"}
