"""Provides a parser for other programs: splits a model's text into prose and calls, without a proxy or mitmproxy.

The parser uses the same code as the proxy: ``request/rewrite.py`` makes the plan from the tools, and
``response/answer.py`` processes the text. The proxy's options have their defaults, except that an answer never ends
early: text after a call is prose.

A ``StreamParser`` returns prose as soon as it cannot be part of a call, and a call once it is complete. The joined
result does not depend on how the text is split. ``addon/docs/parsing.md`` documents this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolsim.core.custom_forms import CustomForm, InvalidForm, read_forms
from toolsim.core.errors import BadRequest
from toolsim.core.events import BackendEvent, CallDelta, CallEnded, CallStarted, Closed, Failed, Finished, TextDelta
from toolsim.core.plan import Plan
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import plan
from toolsim.response.answer import Answer
from toolsim.wire.apis import CHAT, RESPONSES, api_of_request

__all__ = ["BadRequest", "Call", "InvalidCall", "InvalidForm", "Parsed", "Part", "Prose", "StreamParser", "parse"]

_POLICY = Policy(stop_after_tools="off", second_opinion="off")


@dataclass(frozen=True, slots=True)
class Prose:
    """Non-empty text for the user. All prose, joined, is the model's text without its calls."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A complete call to one of the tools. ``namespace`` is the namespace in the tool's declaration, if any."""

    name: str
    arguments: str
    """The arguments as the text of a JSON object, or the input of a custom tool.

    Valid JSON and custom inputs are exactly as the model wrote them.
    """
    namespace: str | None = None
    repairs: tuple[str, ...] = ()
    """The codes of the repairs that made the call valid. ``addon/docs/parsing.md`` lists the codes."""


@dataclass(frozen=True, slots=True)
class InvalidCall:
    """An invalid call to a tool with ``strict: true``, which ends the answer. ``message`` contains the reason."""

    message: str


Part = Prose | Call | InvalidCall


@dataclass(frozen=True, slots=True)
class Parsed:
    """A complete answer. ``parts`` are in the order in which they appear in the text, and adjacent prose is joined."""

    parts: tuple[Part, ...]

    @property
    def prose(self) -> str:
        """The text for the user, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, Prose))

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls, in the order in which they appear in the text."""
        return tuple(part for part in self.parts if isinstance(part, Call))

    @property
    def error(self) -> str | None:
        """The reason why a call to a strict tool is invalid, or None if there is no invalid call."""
        return next((part.message for part in self.parts if isinstance(part, InvalidCall)), None)


def parse(
    text: str,
    tools: Sequence[Mapping[str, Any]],
    *,
    cut: bool = False,
    forms: Sequence[Mapping[str, Any]] = (),
) -> Parsed:
    """Parse a complete answer, and return its prose and calls. For the parameters, see ``StreamParser``."""
    parser = StreamParser(tools, forms=forms)
    parts: list[Part] = []
    for part in [*parser.feed(text), *parser.finish(cut=cut)]:
        last = parts[-1] if parts else None
        if isinstance(part, Prose) and isinstance(last, Prose):
            parts[-1] = Prose(last.text + part.text)
        else:
            parts.append(part)
    return Parsed(tuple(parts))


class StreamParser:
    """Parses one answer that arrives in chunks. No text causes an exception."""

    def __init__(self, tools: Sequence[Mapping[str, Any]], *, forms: Sequence[Mapping[str, Any]] = ()) -> None:
        """Accept ``tools`` as declared in a request to any of the APIs, and call ``forms`` as declared in a profile.

        Raises BadRequest if the tools are invalid or a strict tool's schema cannot be enforced, and InvalidForm if a
        form is invalid.
        """
        self._answer = Answer(_plan(tools, read_forms(forms)), Report())
        self._open: CallStarted | None = None
        self._arguments: list[str] = []

    @property
    def done(self) -> bool:
        """Whether the answer has ended. If so, a model that is still writing can be stopped."""
        return self._answer.is_done

    def feed(self, text: str) -> list[Part]:
        """Process the next chunk of text, and return the parts that are now final."""
        return self._parts(TextDelta(text)) if text else []

    def finish(self, *, cut: bool = False) -> list[Part]:
        """Process the end of the text, and return the remaining parts.

        ``cut`` means that a limit ended the text, so that it might be incomplete.
        """
        return self._parts(Finished("length" if cut else "stop")) + self._parts(Closed())

    def _parts(self, event: BackendEvent) -> list[Part]:
        parts: list[Part] = []
        for emitted in self._answer.feed(event):
            match emitted:
                case TextDelta(text):
                    parts.append(Prose(text))
                case CallStarted():
                    self._open, self._arguments = emitted, []
                case CallDelta(text):
                    self._arguments.append(text)
                case CallEnded(repairs=repairs) if self._open is not None:
                    arguments = "".join(self._arguments)
                    parts.append(Call(self._open.name, arguments, self._open.namespace, repairs))
                case Failed(error):
                    parts.append(InvalidCall(error.message))
        return parts


def _plan(tools: Iterable[Mapping[str, Any]], forms: tuple[CustomForm, ...]) -> Plan:
    """Return the plan for a request with these tools and a placeholder user message."""
    asked = {"model": "", "tools": [dict(tool) for tool in tools]}
    api = api_of_request({**asked, "messages": []})
    if api is CHAT:
        api = RESPONSES  # The Responses API accepts the tools of the other APIs, and more types.
    return plan(api.read(api.append_reply(asked, "", "?")), api, replace(_POLICY, forms=forms), Report())
