"""The tool loop, which asks the model, runs the calls, and returns their results until an answer has no calls.

``Outcome.stop`` is the reason why the loop ended:

| stop | when |
|---|---|
| ``answer`` | an answer without calls |
| ``no_call`` | an answer without calls in ``enforced`` mode, before any tool was called |
| ``tool_failed`` | an answer without calls in ``enforced`` mode, but the failure policy is not met |
| ``max_turns`` | the model was still calling tools after ``max_turns`` questions |

The mode ``enforced`` requires at least one call. ``relaxed`` lets the model decide; if the provider rejects a request,
it is retried without tools, up to ``fallback_retry_count`` times. ``disabled`` offers no tools and runs no calls. A
failed call never ends the loop, since the model might recover.

The failure policy applies only in ``enforced`` mode, at the end of the loop. ``fatal``: the last result of each tool
must be a success. ``tolerated``: at least one result must be a success.

A result refers to its call only by the call's ID, but models repeat IDs. A repeated ID is replaced with a new one.

Each step can be traced: question, answer, call and result (``JsonLines``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from toolsim.eval.runtime.dispatcher import ToolDispatcher
from toolsim.eval.runtime.prompt import PromptRunner
from toolsim.eval.runtime.registry import ToolResult
from toolsim.eval.runtime.turn import Answer, Call, Message, ProviderError, Request, Tool, output_message

Step = dict[str, Any]
"""A step of a loop, for a trace. Its ``step`` is ``request``, ``answer``, ``error``, ``result`` or ``end``."""

Trace = Callable[[Step], None]


def untraced(step: Step) -> None:
    """Discard a step, for loops without a trace."""


class JsonLines:
    """A trace in a file. Each line is flushed, so that it survives a crash."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def __call__(self, step: Step) -> None:
        """Write one step."""
        self._file.write(json.dumps(step, ensure_ascii=False, default=str) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


ToolUseMode = Literal["enforced", "relaxed", "disabled"]
ToolFailurePolicy = Literal["fatal", "tolerated"]
Stop = Literal["answer", "no_call", "tool_failed", "max_turns"]

MAX_TURNS = 8
FINAL_PROMPT = "Answer now in words; use no more tools."


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The settings of a loop. With ``fix_empty_final``, text is requested if an answer to tool results is empty."""

    max_turns: int = MAX_TURNS
    tool_use_mode: ToolUseMode = "relaxed"
    tool_failure_policy: ToolFailurePolicy = "fatal"
    fallback_retry_count: int = 0
    fix_empty_final: bool = True
    fix_empty_final_text: str = FINAL_PROMPT
    fix_empty_final_disable_tools: bool = True
    parallel: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Execution:
    """A call and its result. ``turn`` is the number of the question that led to the call, counted from 1."""

    turn: int
    call: Call
    result: ToolResult


@dataclass(frozen=True, slots=True)
class Outcome:
    """The complete conversation, and the reason why it ended. ``text`` is the text of the last answer."""

    stop: Stop
    text: str
    answers: tuple[Answer, ...]
    executions: tuple[Execution, ...]
    messages: tuple[Message, ...]


class ToolLoopRunner:
    """Runs conversations. It stores no state between them."""

    def __init__(
        self,
        runner: PromptRunner,
        dispatcher: ToolDispatcher,
        tools: Sequence[Tool],
        settings: LoopSettings | None = None,
        trace: Trace = untraced,
    ) -> None:
        self._runner = runner
        self._dispatcher = dispatcher
        self._tools = tuple(tools)
        self._settings = settings or LoopSettings()
        self._trace = trace

    async def run(self, messages: Sequence[Message]) -> Outcome:
        """Run a conversation until the loop ends. Raises ProviderError if a request fails and cannot be retried."""
        conversation = _Conversation(list(messages))
        settings = self._settings
        stop: Stop = "max_turns"
        tools, retried = self._offered(), False
        while len(conversation.answers) < settings.max_turns:
            answer = await self._ask(conversation, tools)
            if settings.fix_empty_final and not retried and conversation.ended_empty():
                retried = True
                conversation.ask_again(settings.fix_empty_final_text)
                tools = () if settings.fix_empty_final_disable_tools else tools
                continue
            # Calls in an answer are ignored if no tools were offered.
            if not answer.calls or not tools:
                stop = self._stop(conversation)
                break
            await self._run_calls(conversation)
        outcome = conversation.end(stop)
        self._trace({"step": "end", "stop": stop, "text": outcome.text})
        return outcome

    def _offered(self) -> tuple[Tool, ...]:
        return () if self._settings.tool_use_mode == "disabled" else self._tools

    def _stop(self, conversation: _Conversation) -> Stop:
        """Return the stop reason of a loop that ended with an answer without calls."""
        if self._settings.tool_use_mode != "enforced":
            return "answer"
        if not conversation.executions:
            return "no_call"
        results = [(execution.call.name, execution.result.ok) for execution in conversation.executions]
        if self._settings.tool_failure_policy == "fatal":
            is_met = all(dict(results).values())
        else:
            is_met = any(ok for _, ok in results)
        return "answer" if is_met else "tool_failed"

    def _is_call_missing(self, conversation: _Conversation) -> bool:
        return self._settings.tool_use_mode == "enforced" and not conversation.executions

    async def _ask(self, conversation: _Conversation, tools: tuple[Tool, ...]) -> Answer:
        settings = self._settings
        forced = bool(tools) and self._is_call_missing(conversation)
        messages = tuple(conversation.messages)
        request = Request(messages, tools, "required" if forced else "auto", settings.parallel, settings.options)
        retries = settings.fallback_retry_count if settings.tool_use_mode == "relaxed" else 0
        while True:
            self._trace({"step": "request", "messages": len(messages), "tools": [tool.name for tool in request.tools]})
            try:
                asked = await self._runner.run(request)
            except ProviderError as error:
                self._trace({"step": "error", "status": error.status, "message": str(error)})
                # After a timeout, a retry would time out, too. If there were no tools, a retry would change nothing.
                if retries <= 0 or error.timed_out or error.status is None or not tools:
                    raise
                retries -= 1
                request = replace(request, tools=(), tool_choice="auto")
            else:
                break
        answer = conversation.add(asked.answer)
        self._trace(
            {
                "step": "answer",
                "fingerprint": asked.fingerprint,
                "text": answer.text,
                "calls": [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in answer.calls],
                "finish": answer.finish,
            }
        )
        return answer

    async def _run_calls(self, conversation: _Conversation) -> None:
        for call in conversation.answers[-1].calls:
            result = await self._dispatcher.dispatch(call)
            conversation.add_result(call, result)
            self._trace({"step": "result", "id": call.id, "name": call.name, "result": result.envelope()})


class _Conversation:
    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.answers: list[Answer] = []
        self.executions: list[Execution] = []
        self._ids: set[str] = {
            call["id"] for message in messages for call in message.get("tool_calls") or () if "id" in call
        }

    def add(self, answer: Answer) -> Answer:
        answer = replace(answer, calls=tuple(replace(call, id=self._unused_id(call.id)) for call in answer.calls))
        self.answers.append(answer)
        self.messages.append(answer.message())
        return answer

    def ended_empty(self) -> bool:
        """Return whether the model's last answer is empty, although tools have been run."""
        last = self.answers[-1]
        return bool(self.executions) and not last.calls and not last.text.strip()

    def ask_again(self, prompt: str) -> None:
        """Replace the model's empty answer with a user message that requests text."""
        self.messages[-1] = {"role": "user", "content": prompt}

    def _unused_id(self, id: str) -> str:
        unused, number = id or "call", 1
        while unused in self._ids:
            number += 1
            unused = f"{id or 'call'}_{number}"
        self._ids.add(unused)
        return unused

    def add_result(self, call: Call, result: ToolResult) -> None:
        self.executions.append(Execution(len(self.answers), call, result))
        self.messages.append(output_message(call, json.dumps(result.envelope(), ensure_ascii=False)))

    def end(self, stop: Stop) -> Outcome:
        text = self.answers[-1].text if self.answers else ""
        return Outcome(stop, text, tuple(self.answers), tuple(self.executions), tuple(self.messages))
