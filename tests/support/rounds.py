"""Runs rounds without a proxy: a script answers each rewritten round, and events are collected as in the proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from support.answers import Seen, read
from support.wire import backend_answer
from toolsim.core.events import ClientEvent, Failed
from toolsim.core.plan import FIND_TOOLS
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import rewrite_request
from toolsim.response.retry import SECOND_OPINION, Retry
from toolsim.response.rewrite import ResponseRewriter
from toolsim.rounds.round_planner import Round, RoundLimits
from toolsim.rounds.runner import Refused, RoundEvent, RoundReport, RunnerJob, answer
from toolsim.wire.apis import APIS
from toolsim.wire.errors import error_body
from toolsim.wire.json_codec import dump


@dataclass
class Script:
    """The model's answer in each round: text, or None for an error. Text that ends with ``|length`` is cut off.

    Bytes are the stream of a backend that emits structured calls (see ``emitted``). ``asked``: the messages that the
    backend received in each round. ``size``: the number of characters in each text delta.
    """

    texts: Sequence[str | bytes | None]
    backend: ApiName
    size: int = 7
    asked: list[list[Any]] = field(default_factory=list)
    closed: int = 0

    async def ask(self, api_name: ApiName, stream: bool, round_: Round) -> AsyncGenerator[RoundEvent]:
        collected: list[ClientEvent | Retry] = []

        def listen(events: Sequence[ClientEvent], retry: Retry | None) -> None:
            collected.extend(events if retry is None else events[:-1])
            collected.extend([retry] if retry is not None else [])

        report = Report(round=round_.number)
        body = dump(round_.body).encode()
        policy = replace(round_.policy, may_look_up=FIND_TOOLS in round_.retries_allowed)
        rewritten = rewrite_request(api_name, "/v1", body, policy, output_mode=None, report=report, is_round=True)
        assert rewritten is not None
        sent = json.loads(rewritten.body)
        instructions = [{"role": "system", "content": sent["system"]}] if "system" in sent else []
        self.asked.append([*instructions, *(sent.get("messages") or sent.get("input"))])
        text = self.texts[round_.number - 1]
        if text is None:
            yield RoundReport(report)
            yield Refused(503, {"content-type": "application/json"}, b'{"error": {}}')
            return
        if isinstance(text, bytes):
            kind, data = "text/event-stream", text
        else:
            text, _, finish = text.partition("|")
            pieces = [text[start : start + self.size] for start in range(0, len(text), self.size)]
            kind, data = backend_answer(self.backend, stream, pieces, finish or "stop")
        may_invent = rewritten.plan.may_invent and SECOND_OPINION in round_.retries_allowed
        plan = replace(
            rewritten.plan,
            retries_allowed=round_.retries_allowed,
            partial_call=round_.partial_call,
            hosted=round_.hosted,
            may_invent=may_invent,
        )
        rewriter = ResponseRewriter(plan, report, content_type=kind, listener=listen)
        for chunk in [data[start : start + 64] for start in range(0, len(data), 64)]:
            rewriter.feed(chunk)
        rewriter.feed(b"")
        try:
            yield RoundReport(report)
            for event in collected:
                yield event
        finally:
            self.closed += 1


def body_of(api_name: ApiName, stream: bool, **more: Any) -> dict[str, Any]:
    """Return a request with two tools, of which ``add`` is strict and ``echo`` is not."""
    number = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}
    number["additionalProperties"] = False
    tools: list[dict[str, Any]] = [
        {"name": "add", "strict": True, "parameters": number},
        {"name": "echo", "parameters": {"type": "object"}},
    ]
    if api_name == "chat":
        wrapped = [{"type": "function", "function": tool} for tool in tools]
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "tools": wrapped}
        asked |= {"stream_options": {"include_usage": True}} if stream else {}
    else:
        asked = {"input": "hi", "tools": [{"type": "function", **tool} for tool in tools]}
    return {"model": "m", "stream": stream, **asked, **more}


def job_of(
    script: Script, api_name: ApiName, stream: bool, policy: Policy, bounds: RoundLimits, **more: Any
) -> RunnerJob:
    """Return the job that answers a request with the tools of ``body_of``."""
    api, body = APIS[api_name], body_of(api_name, stream, **more)
    policy = replace(policy, backend=script.backend)
    return RunnerJob(
        api, body, api.read(body).form, policy, lambda round_: script.ask(api_name, stream, round_), bounds
    )


async def run(job: RunnerJob) -> tuple[int, list[bytes]]:
    """Run a job; return the status and bytes of its answer."""
    writer, chunks = job.api.writer(job.form), list[bytes]()
    async for event in answer(job):
        if isinstance(event, Refused):
            return event.status, [event.body]
        chunks += writer.write(event)
        if isinstance(event, Failed) and not job.form.stream:
            return event.error.status, [error_body(event.error)]
    return 200, chunks if job.form.stream else [dump(writer.body).encode()]


def play(
    *texts: str | None,
    client: ApiName = "responses",
    backend: ApiName = "chat",
    stream: bool = True,
    policy: Policy,
    bounds: RoundLimits | None = None,
    **more: Any,
) -> tuple[Seen, Script, RunnerJob]:
    """Run the rounds; return the answer as the client reads it, the script, and the job."""
    script = Script(texts, backend)
    job = job_of(script, client, stream, policy, bounds or RoundLimits(), **more)
    status, chunks = asyncio.run(run(job))
    return read(client, stream, chunks, status), script, job
