"""Plans with one tool, and a function that turns a backend's events into the client's events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.answers import plan, tool
from toolsim.core.events import BackendEvent, CallDelta, CallEnded, CallStarted, ClientEvent
from toolsim.core.plan import Plan
from toolsim.core.report import Report
from toolsim.response.answer import Answer
from toolsim.response.rewrite import answer_for

ADD = tool("add", a="number")
STRICT = tool("add", True, a="number")
ARGS = '{"a":1}'
CALL = f'<tool_call>{{"name":"add","arguments":{ARGS}}}</tool_call>'


def whole_call(number: int, name: str = "add", arguments: str = ARGS, choice: int = 0) -> list[ClientEvent]:
    return [
        CallStarted(number, name, choice=choice),
        CallDelta(arguments, choice),
        CallEnded("completed", choice),
    ]


def run_events(the_plan: Plan, events: Sequence[BackendEvent]) -> tuple[list[ClientEvent], Report, Answer]:
    report = Report()
    answer = answer_for(the_plan, report)
    return [out for event in events for out in answer.feed(event)], report, answer


def chat(**fields: Any) -> Plan:
    return plan("chat", "chat", True, [ADD], **fields)


def responses(**fields: Any) -> Plan:
    return plan("responses", "responses", True, [ADD], **fields)
