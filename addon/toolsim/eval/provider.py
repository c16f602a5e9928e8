"""The scripted provider, an OpenAI-compatible text server that answers the offline scenarios from their scripts.

The provider receives the same requests as any text-only backend. The prompt identifies the scenario. The number of
assistant messages identifies the step. The provider is therefore stateless and deterministic.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from toolsim.backends.loopback import Loopback
from toolsim.backends.scripted.backend import pieces
from toolsim.backends.scripted.script import messages_of
from toolsim.backends.text_backend import TextBackend
from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import BackendEvent, Closed, Counted, Failed, Finished, Opened, TextDelta, Usage
from toolsim.eval.script import Script, live_scripts
from toolsim.wire.apis import APIS

MODEL = "scripted"


class ScriptedProvider(TextBackend):
    """A backend for the loopback server. It answers a prompt with the next reply in the script for this prompt."""

    apis = tuple(APIS.values())

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self._scripts = scripts

    async def models(self) -> Sequence[str]:
        """Return the name of the only model."""
        return [MODEL]

    async def answer(self, request: ClientRequest) -> AsyncGenerator[BackendEvent]:
        """Answer one request. Token counts are word counts. Raises BadRequest if there is no script for the prompt."""
        transcript = messages_of(request)
        shown = "\n".join(message.text for message in transcript)
        found = next((replies for prompt, replies in self._scripts.items() if prompt in shown), None)
        if found is None:
            raise BadRequest("there is no script for this conversation", "messages")
        turn = sum(message.role == "assistant" for message in transcript)
        reply = found[min(turn, len(found) - 1)]
        text = reply(shown) if callable(reply) else reply
        if isinstance(text, ApiError):
            yield Failed(text)
            return
        yield Opened(model=MODEL)
        for piece in pieces(text):
            yield TextDelta(piece)
        asked, written = len(shown.split()), len(text.split())
        yield Finished("stop")
        yield Counted(Usage(input_tokens=asked, output_tokens=written, total_tokens=asked + written))
        yield Closed()


@asynccontextmanager
async def scripted_provider(more: Mapping[str, Script] | None = None) -> AsyncIterator[str]:
    """Serve the scripts of all scenarios, and ``more`` scripts, on a free loopback port. Yield the base URL."""
    server = Loopback(ScriptedProvider({**live_scripts(), **(more or {})}), is_open=True)
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}/v1"
    finally:
        await server.stop()
