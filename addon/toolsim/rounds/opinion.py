"""Asks the model for a second opinion on its own calls, before the client receives them.

Small models tend to call any tool that they are shown, even for a question that the tool was not made for. If such a
model is shown only the tool and the user's request, in a separate conversation, it sometimes notices the mistake. If it
is asked in the same conversation, after its call, it never does (addon/docs/figures.md).

1. Starting with the first call of a turn, all output is withheld until the turn ends. Most backends answer one request
   at a time, so a question asked meanwhile would have to wait for the turn anyway.
2. The first question is about the tool. It rejects nearly all needless calls, but also some correct calls. The second
   question shows the call with its arguments. It rejects fewer calls of either kind, and not the same calls as the
   first question. Therefore, a "no" to the first question is followed by the second question, and only two "no" answers
   reject a call. The model is asked only about the first call to each tool in an answer. The verdict applies to all
   further calls to this tool, including calls in later rounds.
3. Only a plain "no" rejects a call. The call is emitted if the question fails, receives any other answer, takes more
   than ``PATIENCE_SECONDS``, or exceeds the limits.
4. A rejected call is not emitted. If the answer contains no other call, another round without tools asks the model for
   text. Text after the rejected call is also dropped, because it was about an output that does not exist. If the round
   fails, the call is emitted after all.
5. The model is asked only about calls that it made unprompted, in direct answer to the user. It is not asked about
   calls that the client requires, or about calls after a tool's output, because a call in the middle of a task is not
   always related to the user's request in an obvious way. It is not asked about MCP tools that toolsim runs either,
   because it reads their output and answers in prose anyway. Tools of the Responses API's own kinds (such as ``shell``)
   are also exempt, because they fit any request.
6. A call to a nonexistent tool is rejected without a question (``response/faults.py``).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

from toolsim.core.conversation import ClientRequest, Message
from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    KeepAlive,
    TextDelta,
    Usage,
    added,
)
from toolsim.core.plan import Tool
from toolsim.core.policy import Policy
from toolsim.core.report import Report, code_of, entry
from toolsim.request.rewrite import tools_on_offer
from toolsim.response.parsed_call import use_tool_text
from toolsim.response.retry import SECOND_OPINION, Fault, Retry
from toolsim.rounds.round_planner import Round
from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.json_fields import mapping

RULE = "You check whether a function fits a request. You answer with one word, yes or no."
QUESTION = "A function: {function}\n\nA request: {request}\n\nIs this function made for what the request asks?"
CALL_RULE = "You check whether a call fits a request. You answer with one word, yes or no."
CALL_QUESTION = (
    "A function: {function}\n\nA request: {request}\n\nA call: {call}\n\nIs this call what the request asks for?"
)

PATIENCE_SECONDS = 60.0
"""Timeout for a question, in seconds. It is short because the client is waiting for a call that is ready."""

NO_OPINION = "NO_OPINION"
"""The warning that the model answered a question about a call with neither yes nor no. The call is then emitted."""

_MAX_REQUESTS = 3
"""Maximum number of user messages that a question to the model quotes.

A message such as "And in Paris?" can only be understood with the messages before it.
"""
_MAX_REQUEST = 4_000
"""Maximum length of each quoted message, in characters. The middle of a longer message is cut out."""
_MAX_DESCRIPTION = 2_000

_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_ANSWER = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)

AskModel = Callable[[str, str], Round | None]
"""A function that takes an instruction and a question, and returns the round that asks the question.

It returns None if the limits do not allow this round and the round that might have to follow it.
"""


def question_about(tool: Tool, request: str) -> str:
    """Return the question that asks whether a tool suits the user's request."""
    return QUESTION.format(function=_shown(tool), request=request)


def question_about_call(tool: Tool, arguments: str, request: str) -> str:
    """Return the question that asks whether a call suits the user's request. It shows the arguments as text."""
    values = parse_object(arguments.encode()) if tool.kind == "function" else None
    pairs = (f"{name}={dump(value)}" for name, value in values.items()) if values is not None else [dump(arguments)]
    return CALL_QUESTION.format(
        function=_shown(tool), request=request, call=f"{tool.name}({_shortened(', '.join(pairs))})"
    )


def _shown(tool: Tool) -> str:
    parameters = ", ".join(mapping(tool.shown_parameters.get("properties")))
    return f"{tool.name}({parameters}): {(tool.description or '').strip()[:_MAX_DESCRIPTION]}"


def verdict_of(text: str) -> bool | None:
    """Return True if the answer begins with "yes", False if it begins with "no", and None otherwise."""
    found = _ANSWER.match(_THOUGHT.sub("", text, count=1))
    return found[1].lower() == "yes" if found else None


def user_request(request: ClientRequest) -> str:
    """Return the last few user messages of a conversation, which represent the user's request."""
    texts = [item.text.strip() for item in request.items if isinstance(item, Message) and item.role == "user"]
    return "\n".join(map(_shortened, texts[-_MAX_REQUESTS:]))


def reinstate_calls(report: Report) -> None:
    """Remove the rejected calls from a report's dropped calls, because they are emitted after all."""
    dropped = report.dropped_calls
    dropped[:] = [call for call in dropped if code_of(call) != SECOND_OPINION]


def _shortened(text: str) -> str:
    half = _MAX_REQUEST // 2
    return text if len(text) <= _MAX_REQUEST else f"{text[:half]} … {text[-half:]}"


@dataclass(frozen=True, slots=True)
class OpinionResult:
    """The result of asking the model about the withheld events of a round."""

    passed: Sequence[ClientEvent]
    """The events to emit."""
    whole: Sequence[ClientEvent]
    """All events that were withheld."""
    refused: Sequence[str] = ()
    """The names of the tools whose calls were rejected."""
    has_calls: bool = True
    """Whether any calls remain that were not rejected."""
    usage: Usage | None = None
    """The tokens used by the questions, or None if there are no counts."""

    def in_words(self, end: Ended) -> tuple[Sequence[ClientEvent], Retry]:
        """Return the events to emit for a round whose calls were all rejected, and the retry that asks the model for
        text (rule 4).
        """
        passed = [event for event in self.passed if not isinstance(event, TextDelta)]
        # The events are selected by type rather than by membership in ``passed``, because both lists can contain tens
        # of thousands of events.
        otherwise = [
            event for event in self.whole if isinstance(event, TextDelta | CallStarted | CallDelta | CallEnded)
        ]
        fault = Fault(SECOND_OPINION, name=self.refused[0])
        return passed, Retry(fault, "", (*otherwise, Ended(end.reasons)), end.usage)


class SecondOpinion:
    """Withholds the calls in the answer to ``request`` until the model has been asked about them.

    ``ask`` runs one round, ``report`` is the answer's report, and ``patience`` is the question timeout in seconds.
    """

    def __init__(
        self,
        request: ClientRequest,
        policy: Policy,
        ask: Callable[[Round], AsyncGenerator[object]],
        report: Report,
        *,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        tools = tools_on_offer(request, policy)
        self._tools = {(tool.wire_name, tool.namespace): tool for tool in tools if tool.kind in ("function", "custom")}
        self._request = user_request(request)
        self._ask = ask
        self._report = report
        self._patience = patience
        self._withheld: list[ClientEvent] = []
        self._verdicts: dict[str, bool | None] = {}
        self._usage: Usage | None = None

    @property
    def has_withheld(self) -> bool:
        """Whether any calls are waiting for their verdicts."""
        return bool(self._withheld)

    def take(self, events: Iterable[ClientEvent]) -> list[ClientEvent]:
        """Store the first call and all later events except keep-alives. Return all other events, so that they are
        emitted immediately (rule 1).
        """
        passed: list[ClientEvent] = []
        for event in events:
            if isinstance(event, CallStarted) or (self._withheld and not isinstance(event, KeepAlive)):
                self._withheld.append(event)
            else:
                passed.append(event)
        return passed

    def release(self) -> OpinionResult:
        """Return the withheld events unchanged, because the round has failed."""
        withheld, self._withheld = self._withheld, []
        return OpinionResult(withheld, withheld)

    async def evaluate(self, pose: AskModel) -> OpinionResult:
        """Ask the model about the withheld calls, and return the result."""
        withheld, self._withheld = self._withheld, []
        passed: list[ClientEvent] = []
        refused: list[str] = []
        # Numbers for the remaining calls, so that the rejected calls leave no gaps.
        numbers = (event.number for event in withheld if isinstance(event, CallStarted))
        called = iter(_arguments(withheld))
        # ``tool`` is the tool of a rejected call. While it is set, the events of this call are dropped. The next text
        # resets it.
        calls, tool, arguments = False, None, ""
        for event in withheld:
            match event:
                case CallStarted() if tool := await self._refused(event, arguments := next(called), pose):
                    refused.append(event.name)
                case CallStarted():
                    calls = True
                    passed.append(replace(event, number=next(numbers)))
                case CallDelta() | CallEnded() if tool is not None:
                    pass
                case TextDelta(text=text) if tool is not None:
                    # In obsidian-xml mode, each call is followed by text that contains the call as XML. If the call is
                    # rejected, this text is dropped. To recognize it, the XML is generated here, but only for rejected
                    # calls, because generating it takes time.
                    if not text.endswith(use_tool_text(tool, arguments)):
                        passed.append(event)
                    tool = None
                case _:
                    passed.append(event)
        self._report.dropped_calls += [entry(SECOND_OPINION, name) for name in refused]
        usage, self._usage = self._usage, None
        return OpinionResult(passed, withheld, refused, calls, usage)

    async def _refused(self, call: CallStarted, arguments: str, pose: AskModel) -> Tool | None:
        """Return the called tool if the call is rejected, or None if the call is emitted."""
        tool = self._tools.get((call.name, call.namespace))
        if tool is None or not self._request:
            return None
        if tool.name not in self._verdicts:
            verdict = await self._verdict(RULE, question_about(tool, self._request), pose)
            if verdict is False:
                verdict = await self._verdict(CALL_RULE, question_about_call(tool, arguments, self._request), pose)
            self._verdicts[tool.name] = verdict
            if verdict is None:
                self._report.warnings.append(entry(NO_OPINION, tool.name))
        return tool if self._verdicts[tool.name] is False else None

    async def _verdict(self, rule: str, asked: str, pose: AskModel) -> bool | None:
        """Ask the model a question. Return True for yes, False for no, and None for any other answer or no answer."""
        question = pose(rule, asked)
        if question is None:
            return None
        self._report.rounds += 1
        words: list[str] = []
        end: object = None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience), aclosing(self._ask(question)) as answered:
                async for event in answered:
                    if isinstance(event, TextDelta):
                        words.append(event.text)
                    end = event
        if not isinstance(end, Ended):
            return None
        self._usage = added(self._usage, end.usage)
        return verdict_of("".join(words))


def _arguments(events: Sequence[ClientEvent]) -> list[str]:
    """Return the arguments of each call in the events."""
    texts: list[list[str]] = []
    for event in events:
        match event:
            case CallStarted():
                texts.append([])
            case CallDelta(text=text):
                texts[-1].append(text)
            case _:
                pass
    return ["".join(text) for text in texts]
