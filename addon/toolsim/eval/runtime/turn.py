"""One model turn as data for any API: the request, the answer, and the provider's error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolsim.wire.json_codec import parse_object

_MAX_SHORT = 300

Message = dict[str, Any]
"""A chat completions message: ``role``, ``content``, and for tools ``tool_calls`` or ``tool_call_id``."""

Api = Literal["chat", "responses"]

ToolChoice = str
"""``auto``, ``required``, ``none``, or the name of the tool that must be called."""
Finish = Literal["stop", "tool_calls", "length", "content_filter", "unknown"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as shown to the model. ``parameters`` is the JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False

    def declaration(self) -> dict[str, Any]:
        """Return the tool's declaration in the form of an API, without ``strict``."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the client received it. ``arguments`` is unparsed text, which might not be JSON."""

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
    """A model's answer. Token counts are None if the server did not report them."""

    text: str
    calls: tuple[Call, ...] = ()
    finish: Finish = "stop"
    input_tokens: int | None = None
    output_tokens: int | None = None

    def message(self) -> Message:
        """Return the answer as the assistant message that continues the conversation."""
        if not self.calls:
            return {"role": "assistant", "content": self.text}
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.calls
        ]
        return {"role": "assistant", "content": self.text or None, "tool_calls": calls}

    def in_short(self) -> str:
        """Return the calls, or the text if there are no calls, as one line. A long line is truncated."""
        return ("; ".join(map(str, self.calls)) or self.text)[:_MAX_SHORT]


def output_message(call: Call, output: str) -> Message:
    """Return the output of a call as the message that follows the call."""
    return {"role": "tool", "tool_call_id": call.id, "content": output}


class ProviderError(Exception):
    """Raised if the provider did not answer: an HTTP error (``status``), no connection (None), or a timeout.

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
