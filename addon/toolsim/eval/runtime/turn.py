"""Represents one model turn independently of the API: the request, the answer, and the provider's error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolsim.wire.json_codec import parse_object

_MAX_SHORT = 300

Message = dict[str, Any]
"""A chat completions message with ``role``, ``content``, and optionally ``tool_calls`` or ``tool_call_id``."""

Api = Literal["chat", "responses"]

ToolChoice = str
"""``auto``, ``required``, ``none``, or the name of the tool that must be called."""
Finish = Literal["stop", "tool_calls", "length", "content_filter", "unknown"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as shown to the model. ``parameters`` is a JSON schema for an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False

    def declaration(self) -> dict[str, Any]:
        """Return the fields of the tool's declaration that all APIs share, without ``strict``."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the client received it. ``arguments`` is text that might not be valid JSON."""

    id: str
    name: str
    arguments: str

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})"

    def parsed(self) -> dict[str, Any] | None:
        """Return the arguments, or None if they are not a JSON object. Missing arguments count as an empty object."""
        return parse_object((self.arguments or "{}").encode(errors="surrogatepass"))


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a model. ``options`` are additional fields of the body, such as ``temperature``."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer. A token count is None if the server did not report it."""

    text: str
    calls: tuple[Call, ...] = ()
    finish: Finish = "stop"
    input_tokens: int | None = None
    output_tokens: int | None = None

    def message(self) -> Message:
        """Return the answer as an assistant message, for the next request in the conversation."""
        if not self.calls:
            return {"role": "assistant", "content": self.text}
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.calls
        ]
        return {"role": "assistant", "content": self.text or None, "tool_calls": calls}

    def in_short(self) -> str:
        """Return the calls (or, if there are none, the text) as a string of limited length."""
        return ("; ".join(map(str, self.calls)) or self.text)[:_MAX_SHORT]


def output_message(call: Call, output: str) -> Message:
    """Return the output of a call as a tool message."""
    return {"role": "tool", "tool_call_id": call.id, "content": output}


class ProviderError(Exception):
    """Raised if the provider did not answer. ``status`` is the HTTP status, or None if there was no response.

    ``code`` is the API's error code, or "" for none. ``retry_after`` is in seconds.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str = "",
        timed_out: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.timed_out = timed_out
        self.retry_after = retry_after


Send = Callable[[Request], Awaitable[Answer]]
"""A function that sends one request to a model and returns the answer. It raises ProviderError."""
