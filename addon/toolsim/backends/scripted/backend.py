"""Implements the scripted model as a backend. It is a deterministic substitute for a real model.

``script.reply`` generates the answer. This module streams the answer in small pieces, at a pace that people can follow.
A stage direction in the question, such as ``[slow]``, can make the answer slow, cut it short, or replace it with an
error. Identical conversations result in identical answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TYPE_CHECKING

from toolsim.backends.scripted.script import direction, messages_of, reply
from toolsim.backends.text_backend import TextBackend
from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import ApiError
from toolsim.core.events import BackendEvent, Closed, Counted, Failed, Finished, Opened, TextDelta, Usage

if TYPE_CHECKING:
    from toolsim.proxy.options.settings import Settings

MODEL = "toolsim-scripted"
DELAY_SECONDS = 0.015
"""Seconds between two pieces of text, so that people can read along."""

# Number of characters per piece. Small pieces split tags, names and escapes, as a model's tokens do.
_PIECE_CHARS = 7
# For the stage direction "[slow]": the delay before the first word, in seconds, and a factor for all other delays.
_SLOW_START = 3.0
_SLOW_FACTOR = 10

_TOO_MANY = ApiError(
    "Rate limit reached, as requested by the stage direction [429].",
    type="rate_limit_error",
    code="rate_limit_exceeded",
    status=429,
    retry_after=5,
)


class ScriptedBackend(TextBackend):
    """The scripted model as a backend for the loopback server.

    ``delay`` is the number of seconds between two pieces.
    """

    def __init__(self, delay: float = DELAY_SECONDS) -> None:
        self._delay = delay

    async def models(self) -> Sequence[str]:
        """Return the name of the only model."""
        return [MODEL]

    async def answer(self, request: ClientRequest) -> AsyncGenerator[BackendEvent]:
        """Answer one request. Each word counts as one token."""
        messages = messages_of(request)
        played = direction(messages)
        if played == "429":
            yield Failed(_TOO_MANY)
            return
        text, delay = reply(messages), self._delay
        if played == "slow":
            delay *= _SLOW_FACTOR
            await asyncio.sleep(_SLOW_START)
        yield Opened(model=request.form.model or MODEL)
        for piece in pieces(text[: len(text) // 2] if played == "cut" else text):
            yield TextDelta(piece)
            await asyncio.sleep(delay)
        if played == "cut":
            # Without the ``Closed`` event, the loopback server aborts the response, as if the server had crashed.
            return
        read, written = sum(len(message.text.split()) for message in messages), len(text.split())
        yield Finished("stop")
        yield Counted(Usage(input_tokens=read, output_tokens=written, total_tokens=read + written))
        yield Closed()


def pieces(text: str) -> Iterator[str]:
    """Split text into pieces like the deltas of a real model."""
    return (text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS))


def backend_of(_settings: Settings) -> ScriptedBackend:
    """Return the scripted backend, which needs no settings."""
    return ScriptedBackend()
