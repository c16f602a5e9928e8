"""``toolsim demo``, which sends example requests through the proxy to fill the log and mitmweb.

The demo sends the requests to the proxy's own listener over HTTP, like a client. It checks only the HTTP status of each
answer, because the log shows the details.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mitmproxy import ctx

from toolsim.backends.scripted.backend import MODEL
from toolsim.cli import serve
from toolsim.cli.probe import Unreachable, ask
from toolsim.proxy.address import url_host
from toolsim.proxy.options.api_keys import FILE
from toolsim.wire.api import Api
from toolsim.wire.apis import CHAT, RESPONSES

logger = logging.getLogger(__name__)

# Startup timeout for the built-in backend, in seconds. The backend may take longer to start than the proxy.
_START_SECONDS = 20.0
_TURN_SECONDS = 60.0
_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class DemoTurn:
    """One request of the demo.

    ``text`` is the user's question, and ``items`` are the later messages of the conversation in the API's format.
    ``status`` is the expected HTTP status.
    """

    text: str
    api: Api = CHAT
    stream: bool = True
    strict: bool = False
    tools: bool = True
    items: tuple[dict[str, Any], ...] = ()
    status: int = 200

    def body(self) -> dict[str, Any]:
        """Return the body of the request."""
        asked = [*([{"role": "user", "content": self.text}] if self.text else []), *self.items]
        body: dict[str, Any] = {"model": MODEL, "stream": self.stream}
        body["messages" if self.api is CHAT else "input"] = asked
        if self.tools:
            body["tools"] = [self._tool(tool) for tool in _TOOLS]
        return body

    def _tool(self, tool: _Tool) -> dict[str, Any]:
        schema = {"type": "object", "properties": tool.properties, "required": list(tool.properties)}
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": schema | {"additionalProperties": False},
            "strict": self.strict,
        }
        return {"type": "function", "function": function} if self.api is CHAT else {"type": "function", **function}


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    description: str
    properties: dict[str, Any]


_TOOLS = (
    _Tool("get_weather", "The weather in a city.", {"city": {"type": "string"}}),
    _Tool("search_notes", "Search the user's notes.", {"query": {"type": "string"}}),
)
_WEATHER = "What is the weather in Bonn?"

_TWO_CITIES = "What is the weather in Bonn and in Paris?"


def _history(**outputs: str) -> tuple[dict[str, Any], ...]:
    """Return the calls and outputs that a chat client would send after the question, with one call per city."""
    calls, answers = [], []
    for number, (city, output) in enumerate(outputs.items(), 1):
        call = {"name": "get_weather", "arguments": json.dumps({"city": city})}
        calls.append({"id": f"fc_{number:03}", "type": "function", "function": call})
        answers.append({"role": "tool", "tool_call_id": f"fc_{number:03}", "content": output})
    return {"role": "assistant", "content": None, "tool_calls": calls}, *answers


TURNS = (
    DemoTurn(_TWO_CITIES),
    DemoTurn(_TWO_CITIES, items=_history(Bonn="18 degrees, light rain", Paris="24 degrees, sunny")),
    DemoTurn("Hello", RESPONSES, stream=False),
    DemoTurn("Tell me a story", tools=False),
    DemoTurn('Search my notes for "mitmproxy addons"', RESPONSES),
    DemoTurn(f"{_WEATHER} [string]", RESPONSES),
    DemoTurn(f"{_WEATHER} [empty]", stream=False),
    DemoTurn(f"{_WEATHER} [malformed]"),
    DemoTurn(f"{_WEATHER} [badly]"),
    DemoTurn(f"{_WEATHER} [badly]", RESPONSES, stream=False, strict=True, status=422),
    DemoTurn(f"{_WEATHER} [unknown]"),
    DemoTurn(f"{_WEATHER} [429]", stream=False, status=429),
    DemoTurn(f"{_WEATHER} [cut]", RESPONSES),
    DemoTurn(f"{_WEATHER} [slow]", RESPONSES),
)


class Player:
    """An addon that sends the requests in ``turns`` when the proxy is up. With ``once``, it then stops the proxy.

    ``failed`` is the number of answers with an unexpected status, or None until all requests have been sent.
    """

    def __init__(self, turns: Sequence[DemoTurn] = TURNS, *, once: bool = False) -> None:
        self._turns = turns
        self._once = once
        self._task: asyncio.Task[None] | None = None
        self.failed: int | None = None

    def running(self) -> None:
        """Start sending the requests."""
        self._task = asyncio.get_running_loop().create_task(self._play())

    def done(self) -> None:
        """Stop sending requests."""
        if self._task is not None:
            self._task.cancel()

    async def _play(self) -> None:
        # The pause ensures that the startup banner appears first.
        await asyncio.sleep(_PAUSE)
        host, port, *_ = ctx.master.addons.get("proxyserver").listen_addrs()[0]  # type: ignore[no-untyped-call]
        url = f"http://{url_host(host)}:{port}/v1"
        has_key = not ctx.options.toolsim_api_key.startswith(FILE)
        if not has_key:
            logger.error("the demo cannot use a key file: set toolsim_api_key to a single key")
        failed = 0 if has_key and await self._is_up(url) else len(self._turns)
        if not failed:
            for turn in self._turns:
                status = await _status(url + turn.api.path_suffix, turn.body())
                failed += status != turn.status
        self.failed = failed
        remark = f"; {failed} did not end as expected" if failed else ""
        logger.info(
            "played %d turns%s. Now try it yourself: base URL %s, model %s", len(self._turns), remark, url, MODEL
        )
        if self._once:
            ctx.master.shutdown()  # type: ignore[no-untyped-call]

    async def _is_up(self, url: str) -> bool:
        end = asyncio.get_running_loop().time() + _START_SECONDS
        while asyncio.get_running_loop().time() < end:
            if await _status(f"{url}/models") == 200:
                return True
            await asyncio.sleep(0.1)
        logger.error("the demo received no answer from its own listener, %s", url)
        return False


async def _status(url: str, body: object = None) -> int:
    """Read an answer completely, and return its HTTP status, or 0 if the server cannot be reached."""
    key = ctx.options.toolsim_api_key
    try:
        answer = await asyncio.to_thread(ask, url, key=key, json_body=body, seconds=_TURN_SECONDS)
    except Unreachable:
        return 0
    return answer.status


def run(start: serve.Start, *, once: bool) -> int:
    """Serve the scripted model, send the demo's requests, and return the exit code."""
    player = Player(once=once)
    code = serve.run(replace(start, backend="scripted"), player)
    return code or int(once and player.failed != 0)
