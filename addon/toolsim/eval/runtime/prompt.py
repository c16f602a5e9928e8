"""Sends one question to a model, and applies functions that transform the request and the answer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolsim.eval.runtime.turn import Answer, Call, Request, Send

RequestTransform = Callable[[Request], Request]
AnswerTransform = Callable[[Answer], Answer]


@dataclass(frozen=True, slots=True)
class PromptResult:
    """An answer, and the request as it was sent. Requests with equal model inputs have the same ``fingerprint``."""

    request: Request
    answer: Answer
    fingerprint: str


class PromptRunner:
    """Sends requests through ``send``. Each transform is applied to the result of the previous transform."""

    def __init__(
        self,
        send: Send,
        *,
        request_transforms: Sequence[RequestTransform] = (),
        answer_transforms: Sequence[AnswerTransform] = (),
    ) -> None:
        self._send = send
        self._request_transforms = tuple(request_transforms)
        self._answer_transforms = tuple(answer_transforms)

    async def run(self, request: Request) -> PromptResult:
        """Send one request. Raises ProviderError if the request fails."""
        for transform_request in self._request_transforms:
            request = transform_request(request)
        answer = await self._send(request)
        for transform_answer in self._answer_transforms:
            answer = transform_answer(answer)
        return PromptResult(request, answer, fingerprint(request))


def fingerprint(request: Request) -> str:
    """Return a hash of the model's entire input (messages, tools, choice, options), as 16 hexadecimal digits."""
    tools = [(tool.name, tool.description, dict(tool.parameters), tool.strict) for tool in request.tools]
    prompt: Sequence[Any] = (
        request.messages,
        tools,
        request.tool_choice,
        request.parallel,
        dict(request.options),
    )
    canonical = json.dumps(prompt, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


_TAGGED = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def calls_from_content_tags(answer: Answer) -> Answer:
    """Convert ``<tool_call>{…}</tool_call>`` in an answer's text to calls, if the answer has no calls.

    This is the simplest fallback for servers whose own tool parser misses calls. Unlike the addon's parser, it neither
    validates schemas nor repairs calls.
    """
    if answer.calls:
        return answer
    calls: list[Call] = []

    def take(match: re.Match[str]) -> str:
        try:
            written = json.loads(match[1])
            name, arguments = written["name"], written.get("arguments", {})
        except (ValueError, RecursionError, KeyError, TypeError):
            return match[0]
        if not isinstance(name, str):
            return match[0]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        calls.append(Call(f"tag_{len(calls) + 1}", name, text))
        return ""

    text = _TAGGED.sub(take, answer.text).strip()
    return replace(answer, text=text, calls=tuple(calls), finish="tool_calls") if calls else answer
