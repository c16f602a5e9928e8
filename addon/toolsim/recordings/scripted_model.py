"""Serves a scripted model over HTTP, in a thread of the test's process. The test sets its answers, faults and pace.

``ScriptedModel`` contains one test's script and the requests that it has received. ``ModelServer`` serves the current
test's model as a text-only backend. A mitmdump with the addon runs in front of the server, so that a test's client
receives real calls over any API.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolsim.backends.loopback import Loopback
from toolsim.backends.scripted.backend import pieces
from toolsim.backends.scripted.script import messages_of, outputs_of, question_of
from toolsim.backends.text_backend import TextBackend
from toolsim.core.conversation import ClientRequest, Message
from toolsim.core.errors import ApiError
from toolsim.core.events import BackendEvent, Closed, Counted, Failed, Finished, Opened, TextDelta, Usage
from toolsim.pages.read_prompt import Catalog, find_catalog, find_further
from toolsim.request.record import sentinel_block
from toolsim.wire.json_codec import value_line

MODEL = "scripted"
DEFAULT_TAG = "tool_call"

Part = str | tuple[str, Mapping[str, Any]]
"""A part of an answer: text, or a call as a tool's name and arguments."""


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request as the model received it."""

    question: str
    """The user's text since the last answer."""
    outputs: tuple[str, ...]
    """The tool outputs since the last answer."""
    tools: tuple[str, ...]
    """The names of the tools on offer."""
    messages: tuple[tuple[str, str], ...]
    """The entire prompt, as pairs of role and text."""
    model: str
    stream: bool


@dataclass(frozen=True, slots=True)
class _Answer:
    parts: tuple[Part, ...] = ()
    delay: float = 0.0
    pause: float = 0.0
    cut: int | None = None
    error: ApiError | None = None


class ScriptedModel:
    """The scripted model for one test. Clients of any of the three APIs use its ``base_url``, with any API key.

    ``asked`` contains all requests so far, in order. The first use of ``base_url`` starts the proxy.
    """

    def __init__(self, start: Callable[[Sequence[str]], int]) -> None:
        self._start = start
        self._settings: dict[str, Sequence[str]] = {}
        self._port: int | None = None
        self._ordered: list[_Answer] = []
        self._by_pattern: list[tuple[re.Pattern[str], _Answer]] = []
        self._errors: list[_Answer] = []
        self.asked: list[SeenRequest] = []
        self.unmatched: list[str] = []

    @property
    def base_url(self) -> str:
        """The base URL of the proxy in front of the model."""
        if self._port is None:
            self._port = self._start(
                [f"toolsim_{name}={text}" for name, texts in self._settings.items() for text in texts]
            )
        return f"http://127.0.0.1:{self._port}/v1"

    def set_option(self, name: str, *texts: str) -> None:
        """Set a toolsim option, named without its prefix. Raises RuntimeError if the proxy is already running."""
        if self._port is not None:
            raise RuntimeError("toolsim_model: set options before reading base_url")
        self._settings[name] = texts

    def answer(
        self, *parts: Part, when: str = "", delay: float = 0.0, pause: float = 0.0, cut: int | None = None
    ) -> None:
        """Add an answer that consists of text and calls. A call is a pair: ``("get_weather", {"city": "Bonn"})``.

        Without ``when``, each answer is used once, in the order in which they were added. With ``when``, a regular
        expression, the answer is used for all requests whose question or tool output matches it. If several answers
        match, the last one added is used. ``delay`` is the number of seconds before the first event, and ``pause`` the
        number of seconds after each event. ``cut`` is the number of events after which the server aborts the response.
        """
        made = _Answer(parts, delay, pause, cut)
        if when:
            self._by_pattern.insert(0, (re.compile(when, re.IGNORECASE), made))
        else:
            self._ordered.append(made)

    def call(self, name: str, /, **arguments: Any) -> None:
        """Add an answer that consists of one call and is used once."""
        self.answer((name, arguments))

    def next_error(self, status: int, message: str = "", *, retry_after: int | None = None) -> None:
        """Add an HTTP error as the answer to the next request, regardless of the request's content."""
        kind = {429: "rate_limit_error"}.get(status, "invalid_request_error" if status < 500 else "server_error")
        error = ApiError(message or f"HTTP {status}, as scripted.", kind, status=status, retry_after=retry_after)
        self._errors.append(_Answer(error=error))

    @property
    def remaining(self) -> int:
        """The number of unused answers and errors. Answers with a pattern are not counted."""
        return len(self._ordered) + len(self._errors)

    def assert_asked(self, pattern: str, *, times: int | None = None) -> None:
        """Fail unless the pattern matches the question or a tool output of a request.

        If ``times`` is set, exactly this number of requests must match.
        """
        found = sum(_matches(re.compile(pattern, re.IGNORECASE), asked) for asked in self.asked)
        wanted = found > 0 if times is None else found == times
        if not wanted:
            expected = "at least once" if times is None else f"{times} times"
            said = "".join(f"\n  {_shown(asked)}" for asked in self.asked) or " nothing"
            raise AssertionError(
                f"the model was asked {pattern!r} {found} times, expected {expected}; it was asked:{said}"
            )

    def take(self, asked: SeenRequest) -> _Answer:
        """Return the answer to a request.

        If there is no answer, return an error, and add it to ``unmatched``, so that the test fails.
        """
        self.asked.append(asked)
        if self._errors:
            return self._errors.pop(0)
        for pattern, answer in self._by_pattern:
            if _matches(pattern, asked):
                return answer
        if self._ordered:
            return self._ordered.pop(0)
        message = f"toolsim_model: the test defines no answer for this request: {_shown(asked)}"
        self.unmatched.append(message)
        return _Answer(error=ApiError(message, "invalid_request_error", "not_scripted", status=404))


class ModelServer(TextBackend):
    """Serves the current model on a free port of 127.0.0.1, from an event loop in a thread."""

    def __init__(self) -> None:
        self.current: ScriptedModel | None = None
        self._loopback = Loopback(self, is_open=True)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="toolsim scripted model", daemon=True)
        self._thread.start()
        self._run(self._loopback.start())

    @property
    def url(self) -> str:
        """The base URL of the model itself, without a proxy."""
        return f"http://127.0.0.1:{self._loopback.port}/v1"

    def close(self) -> None:
        """Stop serving, and end the thread."""
        self._run(self._loopback.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def models(self) -> Sequence[str]:
        """Return the name of the only model."""
        return [MODEL]

    async def answer(self, request: ClientRequest) -> AsyncGenerator[BackendEvent]:
        """Answer one request. The reported token counts are the numbers of words."""
        messages, model = messages_of(request), self.current
        if model is None:
            yield Failed(ApiError("No test is running.", status=503))
            return
        catalogs = list(_catalogs(messages))
        asked = _asked(request, messages, catalogs)
        answer = model.take(asked)
        await asyncio.sleep(answer.delay)
        if answer.error is not None:
            yield Failed(answer.error)
            return
        yield Opened(model=request.form.model or MODEL)
        text = _text(answer.parts, catalogs[0].tag if catalogs else DEFAULT_TAG)
        for number, piece in enumerate(pieces(text)):
            if number == answer.cut:
                # Without the ``Closed`` event, the server aborts the response.
                return
            yield TextDelta(piece)
            await asyncio.sleep(answer.pause)
        if answer.cut is not None:
            return
        yield Finished("stop")
        read, written = sum(len(text.split()) for _, text in asked.messages), len(text.split())
        yield Counted(Usage(input_tokens=read, output_tokens=written, total_tokens=read + written))
        yield Closed()


def _catalogs(messages: Sequence[Message]) -> Iterator[Catalog]:
    for message in messages:
        for find in (find_catalog, find_further):
            if (found := find(message.text)) is not None:
                yield found


def _asked(request: ClientRequest, messages: Sequence[Message], catalogs: Sequence[Catalog]) -> SeenRequest:
    return SeenRequest(
        question_of(messages),
        tuple(outputs_of(messages)),
        tuple(tool.name for catalog in catalogs for tool in catalog.tools),
        tuple((message.role, message.text) for message in messages),
        request.form.model,
        request.form.stream,
    )


def _text(parts: Sequence[Part], tag: str) -> str:
    return "\n".join(
        part if isinstance(part, str) else sentinel_block(part[0], value_line(part[1]), tag) for part in parts
    )


def _matches(pattern: re.Pattern[str], asked: SeenRequest) -> bool:
    return any(pattern.search(text) for text in (asked.question, *asked.outputs))


def _shown(asked: SeenRequest) -> str:
    outputs = f" (tool outputs: {'; '.join(asked.outputs)})" if asked.outputs else ""
    return f"{asked.question[:200]!r}{outputs[:200]}"
