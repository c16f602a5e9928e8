"""Asks the questions in a run. Adds sampling options, enforces timeouts, waits for rate limits, and records the steps.

A case sees only an ordinary Send, which does the following:

1. It adds the sampling profile's options. The profile's ``tool_choice`` takes precedence if there are tools.
2. It limits each question to ``seconds`` (None: no limit), even if the answer is still arriving.
3. After a rate limit (429, or 503 with Retry-After), it waits and retries. The wait does not count as model time.
4. It records each question and its answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from time import monotonic
from typing import Any

from toolsim.eval.runtime.turn import Answer, Message, ProviderError, Request, Send

MAX_WAITS = 5
MAX_WAIT_SECONDS = 90.0
"""Maximum wait for a rate limit, in seconds. Hosted APIs count requests per minute, so longer waits do not help."""
FIRST_WAIT_SECONDS = 1.0


class Asking:
    """A Send that records the questions of one run and their answers."""

    def __init__(self, send: Send, options: Mapping[str, Any], seconds: float | None) -> None:
        self._send = send
        self._options = {name: value for name, value in options.items() if name != "tool_choice"}
        self._tool_choice = options.get("tool_choice", "")
        self._seconds = seconds
        self._last: tuple[Message, ...] = ()
        self.steps: list[dict[str, Any]] = []
        self.waited = 0.0
        self.rewritten = 0
        """The number of questions with tools or tool outputs that reached the backend. The proxy records only these."""
        self.input_tokens = 0
        self.output_tokens = 0

    async def __call__(self, request: Request) -> Answer:
        """Ask a question. Raises ProviderError if the request fails."""
        request = replace(request, options={**self._options, **request.options})
        if self._tool_choice and request.tools:
            request = replace(request, tool_choice=self._tool_choice)
        step = self._note(request)
        started, waited = monotonic(), self.waited
        try:
            answer = await self._ask(request)
        except ProviderError as error:
            step["error"] = {"status": error.status, "code": error.code, "message": str(error)}
            # The proxy does not record the request if the backend cannot be reached.
            self.rewritten += error.status is not None and error.status < 500 and _has_tools(request)
            raise
        finally:
            step["ms"] = round((monotonic() - started - (self.waited - waited)) * 1000, 1)
        step["answer"] = asdict(answer)
        self.rewritten += _has_tools(request)
        self.input_tokens += answer.input_tokens or 0
        self.output_tokens += answer.output_tokens or 0
        return answer

    async def _ask(self, request: Request) -> Answer:
        for attempt in range(MAX_WAITS + 1):
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._send(request)
            except TimeoutError:
                raise ProviderError(f"no answer within {self._seconds:g} s", timed_out=True) from None
            except ProviderError as error:
                seconds = _wait(error, attempt)
                if seconds is None or attempt == MAX_WAITS:
                    raise
            started = monotonic()
            await asyncio.sleep(seconds)
            self.waited += monotonic() - started
        raise AssertionError("the last attempt neither returned nor raised an exception")

    def _note(self, request: Request) -> dict[str, Any]:
        before = common_prefix(self._last, request.messages)
        self._last = request.messages
        step: dict[str, Any] = {
            "messages_before": before,
            "messages": list(request.messages[before:]),
            "tools": [tool.name for tool in request.tools],
            "sizes": {
                "messages": len(json.dumps(request.messages, ensure_ascii=False)),
                "tools": len(json.dumps([asdict(tool) for tool in request.tools], ensure_ascii=False)),
            },
            "tool_choice": request.tool_choice,
            "options": dict(request.options),
        }
        self.steps.append(step)
        return step


def common_prefix(before: Sequence[Any], now: Sequence[Any]) -> int:
    """Return the length of the common prefix of two sequences. A trace contains only the messages after this prefix."""
    count = 0
    while count < min(len(before), len(now)) and before[count] == now[count]:
        count += 1
    return count


def _has_tools(request: Request) -> bool:
    return bool(request.tools) or any(message["role"] == "tool" for message in request.messages)


def _wait(error: ProviderError, attempt: int) -> float | None:
    """Return the number of seconds to wait before the next attempt, or None if the question must not be repeated."""
    if error.status == 429:
        seconds = FIRST_WAIT_SECONDS * 2**attempt if error.retry_after is None else error.retry_after
    elif error.status == 503 and error.retry_after is not None:
        seconds = error.retry_after
    else:
        return None
    return seconds if seconds <= MAX_WAIT_SECONDS else None
