"""Tests for the request that is sent to the model for a background answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mitmproxy.test import tflow
from toolsim.background.request import BackgroundRequest, in_background, job_of
from toolsim.core.errors import BadRequest
from toolsim.core.plan import AnswerForm, StoredAs
from toolsim.core.policy import Policy
from toolsim.proxy.jobs import ROUNDS_OFF
from toolsim.proxy.rounds import MAX_BODY_BYTES, Rounds
from toolsim.rounds.round_planner import RoundLimits
from toolsim.wire.apis import CHAT, RESPONSES

BODY: dict[str, Any] = {"model": "m", "input": "hi", "background": True}
CHAT_BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
}


@pytest.mark.parametrize("stream", [False, True])
def test_backend_request_always_streams(stream: bool) -> None:
    """The request to the backend always sets ``stream`` to true and ``store`` to false. The client's answer still
    reports the settings that the client sent.
    """
    form, asked = in_background(RESPONSES, {**BODY, "stream": stream, "metadata": {"a": "b"}}, StoredAs("resp_1"))
    assert asked == {"model": "m", "input": "hi", "stream": True, "store": False, "metadata": {"a": "b"}}
    assert (form.stream, form.id, form.echo["background"], form.echo["store"]) == (stream, "resp_1", True, True)


@pytest.mark.parametrize(("sent", "echo"), [({"store": False}, {}), ({}, {"store": False})])
def test_background_request_must_be_stored(sent: dict[str, Any], echo: dict[str, Any]) -> None:
    """A background request with ``store: false`` is refused, because the client could never fetch the answer."""
    with pytest.raises(BadRequest, match="requires 'store'") as caught:
        in_background(RESPONSES, BODY | sent, StoredAs("resp_1", echo))
    assert caught.value.error.param == "background"


@pytest.mark.parametrize(
    ("policy", "tools", "count"), [(Policy(), True, 1), (Policy(retry=1), True, 8), (Policy(retry=1), False, 1)]
)
async def test_background_answer_always_has_a_job(policy: Policy, tools: bool, count: int) -> None:
    """A background answer always requires a job for the runner, even without tools. If the request body is large, the
    job is limited to a single round.
    """
    body = json.dumps(CHAT_BODY if tools else {"model": "m", "messages": []}).encode()
    form = AnswerForm(stream=True, model="m")
    rounds = Rounds(10)
    job = job_of(
        BackgroundRequest(form, body, b"[]", ()), tflow.tflow(), "owner", CHAT, policy, RoundLimits(), None, rounds
    )
    assert (job.bounds.rounds, job.store, job.hosted) == (count, None, None)
    assert (job.form, job.report.client, job.report.model) == (form, "chat", "m")
    large = body + b" " * MAX_BODY_BYTES
    job = job_of(
        BackgroundRequest(form, large, b"[]", ()), tflow.tflow(), "owner", CHAT, policy, RoundLimits(), None, rounds
    )
    assert job.bounds.rounds == 1
    assert job.report.warnings == ([ROUNDS_OFF] if policy.needs_rounds else [])
