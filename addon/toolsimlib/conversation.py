"""What was said so far, in one form for both dialects: the neutral middle of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolsimlib.events import ToolKind
from toolsimlib.plan import Choice, Dialect, Tool

Role = Literal["system", "developer", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Text:
    """A text part."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image part; ``url`` may be a data URL."""

    url: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Raw:
    """A part in one dialect's own shape (a file, audio, a file id); it can only travel to a backend of that dialect."""

    dialect: Dialect
    part: Mapping[str, Any]


Part = Text | Image | Raw


@dataclass(frozen=True, slots=True)
class Message:
    """One message; ``name`` is chat's participant name."""

    role: Role
    parts: tuple[Part, ...]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model made earlier.

    ``name`` is the model's name; ``arguments`` the JSON text, or a custom tool's input.
    """

    call_id: str
    name: str
    arguments: str
    item_id: str | None = None
    kind: ToolKind = "function"


@dataclass(frozen=True, slots=True)
class CallOutput:
    """What the client's tool answered. Text parts are the output, images follow its record."""

    call_id: str
    parts: tuple[Part, ...]
    name: str | None = None


Item = Message | Call | CallOutput


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A client's request, read. ``body`` is the JSON object as sent, from which everything that is not ours travels on.

    ``tools`` are the client's own (function and custom), ``hosted`` the declarations of all other kinds, as sent.
    ``notes`` name what was dropped (``item_reference``, ``reasoning``, …), for the log.
    """

    dialect: Dialect
    body: Mapping[str, Any]
    items: tuple[Item, ...]
    tools: tuple[Tool, ...] = ()
    hosted: tuple[Mapping[str, Any], ...] = ()
    choice: Choice = Choice()
    parallel: bool = True
    stream: bool = False
    include_usage: bool = False
    n: int = 1
    legacy_functions: bool = False
    notes: tuple[str, ...] = field(default_factory=tuple)
