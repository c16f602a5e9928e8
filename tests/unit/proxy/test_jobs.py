"""Jobs that rewrite bodies: detection of heavy jobs, and handling of exceptions."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from toolsim.background.request import read_request
from toolsim.core.plan import AnswerForm, Plan, StoredAs
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy import jobs
from toolsim.proxy.jobs import (
    LOOP_BYTES,
    AnswerJob,
    Job,
    PageJob,
    PluginJob,
    RequestJob,
    RequestResult,
    ResolveJob,
    is_heavy,
    run,
)
from toolsim.wire.json_codec import TOO_DEEP
from toolsim.wire.responses.resources import Resource, ResourceCall
from toolsim.wire.responses.stored import Recalled

NESTED = b'{"input":' + b"[" * 3000 + b"]" * 3000 + b"}"
BODY = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f"}}]}


def request_job(body: object = BODY, encoding: str = "", limit: int = 10_000) -> RequestJob:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return RequestJob("chat", "/v1/chat/completions", Policy(), data=data, limit=limit, encoding=encoding)


def answer_job(data: bytes, encoding: str = "", limit: int = 10_000) -> AnswerJob:
    return AnswerJob(Plan("chat", "chat", AnswerForm()), "application/json", data=data, limit=limit, encoding=encoding)


def plugin_job(data: bytes = b'{"input":"x","background":true}', encoding: str = "", limit: int = 10_000) -> PluginJob:
    """Return a job that parses a request in background mode (``"background": true``)."""
    return PluginJob(partial(read_request, "responses", StoredAs("resp_1")), data=data, limit=limit, encoding=encoding)


def page_job(data: bytes, encoding: str = "") -> PageJob:
    call = ResourceCall(Resource("conversation", "conv_1"), "POST")
    return PageJob(
        call, b'{"id":"conv_1","object":"conversation","items":[]}', data=data, limit=10_000, encoding=encoding
    )


@pytest.mark.parametrize(
    ("job", "heavy"),
    [
        (request_job(), False),
        (request_job(encoding=" Identity"), False),
        (request_job(encoding="gzip"), True),
        (request_job(b" " * LOOP_BYTES), False),
        (request_job(b" " * (LOOP_BYTES + 1)), True),
        (answer_job(b" " * (LOOP_BYTES + 1)), True),
        (page_job(b"{}"), False),
        (page_job(b"{}", "gzip"), True),
    ],
)
def test_heavy_jobs_are_recognized(job: Job[Any], heavy: bool) -> None:
    """A job with a large or compressed body is heavy, and does not run on the event loop."""
    assert is_heavy(job) is heavy


def test_job_and_result_can_be_pickled() -> None:
    """Jobs and their results can be pickled. A job that has been pickled and unpickled returns the same result as the
    original.
    """
    for job in (request_job(), answer_job(b'{"choices":[{"message":{"content":"Hi"}}]}'), plugin_job()):
        result = run(pickle.loads(pickle.dumps(job)), long_budget=True)
        travelled = pickle.loads(pickle.dumps(result))
        assert type(travelled) is job.result
        assert repr(travelled) == repr(result)
        assert (travelled.error, travelled.report) == (None, run(job).report)


def test_compressed_resource_request_is_decoded() -> None:
    """A job decompresses the body of a request for a stored resource, such as a conversation."""
    done = run(page_job(gzip.compress(b'{"metadata":{"a":"b"}}'), "gzip"))
    assert done.error is None
    assert json.loads(done.body)["metadata"] == {"a": "b"}


def test_rewritten_request_has_a_label() -> None:
    """The result of a request job contains the label that identifies the request in the log."""
    done = run(request_job())
    assert done.topic is not None
    assert done.topic.words == "x"


@pytest.mark.parametrize(
    ("job", "status", "words"),
    [
        (request_job(limit=10), 413, "toolsim_max_body_bytes"),
        (request_job(gzip.compress(bytes(20_000)), "gzip"), 413, "toolsim_max_body_bytes"),
        (request_job(b"no gzip", "gzip"), 400, "cannot be decoded"),
        (request_job({**BODY, "tools": 5}), 400, "tools"),
        (page_job(gzip.compress(bytes(20_000)), "gzip"), 413, "toolsim_max_body_bytes"),
        (page_job(b"no gzip", "gzip"), 400, "cannot be decoded"),
        (answer_job(bytes(11), limit=10), 502, "toolsim_max_body_bytes"),
        (answer_job(b"x", "br"), 502, "cannot be decoded"),
        (plugin_job(b"no JSON"), 400, "not a JSON object"),
        (plugin_job(b"x" * 11, limit=10), 413, "toolsim_max_body_bytes"),
        (plugin_job(b"x", "br"), 400, "cannot be decoded"),
        (plugin_job(b'{"input":"x","store":false}'), 400, "requires 'store'"),
        (plugin_job(b'{"input":' + b"[" * 3000 + b"]" * 3000 + b"}"), 400, TOO_DEEP),
        (replace(request_job(NESTED), policy=Policy(backend="responses")), 400, TOO_DEEP),
        (page_job(NESTED), 400, TOO_DEEP),
    ],
)
def test_failed_job_returns_an_error(job: Job[Any], status: int, words: str) -> None:
    """A job that fails returns an error in the API's format instead of raising an exception."""
    error = run(job).error
    assert error is not None
    assert error.status == status
    assert words in error.message


@pytest.mark.parametrize("bug", [MemoryError, ZeroDivisionError])
def test_no_exception_escapes(bug: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """If a job fails because of a bug, it returns an internal error with a traceback. After a MemoryError, it returns
    an error about a body that is too large.
    """

    def broken(*_: Any, **__: Any) -> None:
        raise bug

    monkeypatch.setattr(jobs, "rewrite_request", broken)
    done = run(request_job())
    assert done.error is not None
    assert (done.error.code, "ZeroDivisionError" in done.crash) == (
        ("request_too_large", False) if bug is MemoryError else ("internal_error", True)
    )


@pytest.mark.parametrize("body", [b"plain", b'{"tools": []}', b'{"x": NaN}', b'["tools", NaN]'])
def test_bodies_without_tools_pass(body: bytes) -> None:
    """A body that is not an object, or does not mention tools, is passed on unchanged."""
    assert run(request_job(body)) == RequestResult(Report())


@pytest.mark.parametrize("body", [b'{"tools": [NaN]}', b'{"tools": [', b' {"tool_calls": -Infinity}'])
def test_unparsable_tools_are_refused(body: bytes) -> None:
    """A body with tools that cannot be parsed is refused. Otherwise, the model would not see the tools."""
    error = run(request_job(body)).error
    assert error is not None
    assert error.status == 400


def test_chat_conversation_is_stored_as_items() -> None:
    """A chat conversation that is sent to the path of the Responses API is stored as items of the Responses API."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    done = run(ResolveJob(data=json.dumps(body).encode(), limit=1000, recalled=Recalled()))
    (item,) = json.loads(done.own)
    assert item["content"] == [{"type": "input_text", "text": "Hi"}]
    bad = run(ResolveJob(data=b'{"messages":[3]}', limit=1000, recalled=Recalled()))
    assert (bad.error, bad.own) == (None, b"")
