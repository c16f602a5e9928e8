"""Implements the methods ``toolsim``, ``native`` and ``prompt``, which define how a model receives tools."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from toolsim.eval.case import Case, Cell
from toolsim.eval.plain_prompt import PlainPrompt
from toolsim.eval.proxy_process import Proxies
from toolsim.eval.recorded import Captures
from toolsim.eval.runtime.prompt import calls_from_content_tags
from toolsim.eval.runtime.turn import Answer, Request, Send

if TYPE_CHECKING:
    import openai

CONTENT_TAGS = "content_tag_fallback"
"""A setting of the ``native`` method, which makes tagged calls in an answer's text count as calls."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server to be evaluated. ``api_key`` is sent only in the Authorization header."""

    base_url: str
    api_key: str = "none"
    client_seconds: float | None = 120.0
    open_seconds: float | None = 10.0
    read_seconds: float | None = 120.0
    """Timeout for reading from the server, in seconds, or None for no limit."""


class Methods:
    """Creates a Send for each run. There is a client per base URL, and a proxy per model and set of addon options."""

    def __init__(self, target: Target, proxies: Proxies) -> None:
        self._target = target
        self._proxies = proxies
        self._clients: dict[str, openai.AsyncOpenAI] = {}
        self._captures: dict[str, Captures] = {}

    async def open(self, cell: Cell, case: Case, user: str) -> tuple[Send, Captures | None]:
        """Return a Send and, for ``toolsim``, the proxy's recordings. Raises StartFailed if the proxy cannot start."""
        from toolsim.eval.runtime.openai_client import sender

        if cell.method != "toolsim":
            send = sender(self._client(self._target.base_url), cell.model, api=cell.api, stream=cell.stream)
            if cell.method == "prompt":
                return prompted(send, case), None
            return with_content_tags(send) if cell.setting == CONTENT_TAGS else send, None
        proxy = await self._proxies.get(user, (*cell.setting.split(), *case.options))
        captures = self._captures.setdefault(proxy.base_url, Captures(proxy.captures))
        captures.forget()
        client = self._client(proxy.base_url)
        return sender(client, cell.model, api=cell.api, stream=cell.stream), captures

    def _client(self, base_url: str) -> openai.AsyncOpenAI:
        # The package is imported here, so that --help works without it.
        import openai

        if base_url not in self._clients:
            target = self._target
            self._clients[base_url] = openai.AsyncOpenAI(
                base_url=base_url,
                api_key=target.api_key,
                # The SDK must not retry, because the evaluation counts failures and handles rate limits itself.
                max_retries=0,
                timeout=openai.Timeout(target.client_seconds, connect=target.open_seconds, read=target.read_seconds),
            )
        return self._clients[base_url]

    async def close(self) -> None:
        """Close all connections to servers and proxies."""
        for client in self._clients.values():
            await client.close()


def with_content_tags(send: Send) -> Send:
    """Return a Send that converts tagged calls in an answer's text to calls, if the answer has no other calls."""

    async def ask(request: Request) -> Answer:
        answer = await send(request)
        return calls_from_content_tags(answer) if request.tools else answer

    return ask


def prompted(send: Send, case: Case) -> Send:
    """Return a Send that describes the tools in the prompt and parses calls from the model's text."""
    form = case.form or PlainPrompt()

    async def ask(request: Request) -> Answer:
        messages = form.write(request.messages, request.tools)
        answer = await send(replace(request, messages=tuple(messages), tools=()))
        if not request.tools:
            return answer
        text, calls = form.read(answer.text)
        return replace(answer, text=text, calls=calls, finish="tool_calls" if calls else answer.finish)

    return ask
