"""All options, in one table: what mitmproxy registers, what the operator may say, and what the rooms get of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import SplitResult, urlsplit

from mitmproxy.exceptions import OptionsError

from toolsimlib.plan import Policy

PREFIX = "toolsim_"

Value = str | int | bool | tuple[str, ...]
OwnBackend = Literal["codex", "scripted"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option; its type is that of ``default``. A tuple is a sequence of words, which may also be set with commas.

    ``env`` is the flag of the predecessor that is read as the default, ``least`` the smallest number allowed.
    """

    name: str
    default: Value
    help: str
    choices: tuple[str, ...] = ()
    env: str = ""
    least: int = 0

    @property
    def full_name(self) -> str:
        """The name as mitmproxy knows it."""
        return PREFIX + self.name

    @property
    def typespec(self) -> Any:
        """The type as mitmproxy's option manager wants it."""
        return Sequence[str] if isinstance(self.default, tuple) else type(self.default)


OPTIONS = (
    Option(
        "backend",
        "auto",
        "What answers. auto: the upstream speaks whichever API the client speaks. responses, chat: it speaks only this "
        "API, and the other one is translated. codex, scripted: a backend of toolsim's own answers requests that are "
        "addressed to the listener itself; codex runs the Codex app-server under your login, scripted is a "
        "deterministic stand-in to try things with.",
        ("auto", "responses", "chat", "codex", "scripted"),
    ),
    Option(
        "upstream",
        "",
        "URL of the backend for API requests that are addressed to any other host, for clients whose base URL cannot "
        "be set: their requests are sent there instead. A path in it replaces what precedes /responses, "
        "/chat/completions or /models.",
    ),
    Option(
        "manifest_role",
        "auto",
        "Role of the message that shows the tools to the model. auto: developer over the Responses API, system over "
        "chat completions. Some gateways drop system text: use user there.",
        ("auto", "developer", "system", "user"),
    ),
    Option(
        "history",
        "record",
        "How earlier calls are shown to the model. record: one bracketed line each, which the model cannot mistake for "
        "the way to call. sentinel: in the very form in which it calls.",
        ("record", "sentinel"),
    ),
    Option(
        "sentinel",
        "tool_call",
        "Name of the tag that opens a call in the model's text. A private name avoids clashes with texts that talk "
        "about tool calls.",
    ),
    Option("use_tool", True, "Whether <use_tool> blocks in the model's text count as calls too."),
    Option(
        "repair",
        "safe",
        "Whether a call whose JSON is malformed gets one repair pass. safe: the result counts only if it satisfies the "
        "tool's schema. off: such a call stays text. Strict tools are never repaired.",
        ("safe", "off"),
    ),
    Option(
        "strict_policy",
        "error",
        "What becomes of a call that violates a strict tool's schema. error: the answer fails (HTTP 422, or an error "
        "event in a stream). message: the assistant says it in words.",
        ("error", "message"),
    ),
    Option(
        "stream_arguments",
        "buffered",
        "When arguments are streamed. buffered: a call is announced once it is known to be whole and valid. "
        "incremental: arguments of non-strict tools are streamed while the model writes them.",
        ("buffered", "incremental"),
    ),
    Option(
        "output_mode",
        "openai-json",
        "Form of the calls. openai-json: the API's own. obsidian-xml: <use_tool> text beside them. The request header "
        "x-proxy-output-mode overrides it for one request.",
        ("openai-json", "obsidian-xml"),
        env="PROXY_OUTPUT_MODE",
    ),
    Option(
        "stop_after_tools",
        "auto",
        "Whether the first other text after a call ends the turn and stops the backend. auto: on for chat completions, "
        "whose messages have no place for such text, off for the Responses API.",
        ("auto", "on", "off"),
        env="PROXY_STOP_AFTER_TOOLS",
    ),
    Option(
        "stop_after_tools_mode",
        "burst",
        "How a turn is ended early. burst: calls that follow each other directly all count. first: the first call ends "
        "the turn.",
        ("burst", "first"),
        env="PROXY_STOP_AFTER_TOOLS_MODE",
    ),
    Option(
        "suppress_tail_after_tools",
        False,
        "Drop text that follows a call, without stopping the backend.",
        env="PROXY_SUPPRESS_TAIL_AFTER_TOOLS",
    ),
    Option(
        "parallel_tool_calls",
        True,
        "Whether one answer may hold several calls. When false, one is the limit, whatever the request says.",
        env="PROXY_ENABLE_PARALLEL_TOOL_CALLS",
    ),
    Option("tool_block_max", 0, "Largest number of calls in one answer; 0 = no limit.", env="PROXY_TOOL_BLOCK_MAX"),
    Option(
        "tool_block_dedup",
        False,
        "Drop a call that repeats an earlier one of the same answer, arguments included.",
        env="PROXY_TOOL_BLOCK_DEDUP",
    ),
    Option(
        "tool_block_delimiter",
        "\n",
        r"Text between <use_tool> blocks in output mode obsidian-xml; \n stands for a line break, \t for a tab.",
        env="PROXY_TOOL_BLOCK_DELIMITER",
    ),
    Option("tool_allowlist", (), "Names of the only tools that the model may see and call; empty = all."),
    Option("tool_denylist", (), "Names of tools that the model may neither see nor call."),
    Option(
        "max_tool_args_bytes",
        200_000,
        "Size limit of one call's arguments in bytes. A larger call fails (strict tools) or stays text.",
        least=1,
    ),
    Option(
        "max_tool_output_bytes",
        200_000,
        "Size limit of one tool output in bytes. A larger one is replaced by an error object that says so.",
        least=1,
    ),
    Option(
        "forward_hosted_tools",
        False,
        "Forward tools that the backend itself would run (web_search, mcp and the like) instead of dropping them.",
    ),
    Option(
        "sse_telemetry",
        False,
        "End each event stream with a comment that holds what the log line holds. Some clients' parsers break on "
        "comments.",
    ),
    Option(
        "api_key",
        "",
        "Key that clients must send as their Bearer token. Required before the codex backend is served to other "
        "machines.",
    ),
    Option("codex_command", "codex app-server", "Command line that starts the Codex app-server."),
    Option(
        "codex_port",
        0,
        "Port on 127.0.0.1 of the codex backend, for an explicit reverse mode to it; 0 = any free one.",
    ),
    Option(
        "scripted_port",
        0,
        "Port on 127.0.0.1 of the scripted backend, for an explicit reverse mode to it; 0 = any free one.",
    ),
    Option(
        "capture",
        "",
        "Folder in which each finished exchange is recorded as one .flow file, without secrets; empty = none.",
    ),
    Option(
        "cors_origins",
        ("app://obsidian.md", "capacitor://localhost", "http://localhost:*", "http://127.0.0.1:*"),
        "Origins of web pages and Electron programs that may use the API. :* stands for any port or none, and * alone "
        "for any origin.",
    ),
    Option(
        "idle_timeout",
        300,
        "Seconds of silence from the backend after which an answer fails; 0 = wait for ever.",
    ),
)


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where requests are sent instead; ``path`` (without a slash at its end) goes before the endpoint's."""

    scheme: str
    host: str
    port: int
    path: str = ""


@dataclass(frozen=True, slots=True)
class Origins:
    """Who may read answers across origins."""

    patterns: tuple[str, ...] = ()

    def allow(self, origin: str) -> bool:
        """Tell whether an ``Origin`` header is listed."""
        return any(_origin_matches(pattern, origin) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator decided about the edge; ``own_backend`` is one of toolsim's own."""

    policy: Policy = Policy()
    own_backend: OwnBackend | None = None
    upstream: Upstream | None = None
    api_key: str = ""
    codex_command: tuple[str, ...] = ("codex", "app-server")
    codex_port: int = 0
    scripted_port: int = 0
    capture: str = ""
    origins: Origins = Origins()
    idle_timeout: float = 300.0

    @property
    def own_port(self) -> int:
        """The port asked for by the own backend's option; 0 = any."""
        return self.codex_port if self.own_backend == "codex" else self.scripted_port


class Loader(Protocol):
    """The part of mitmproxy's loader that is used."""

    def add_option(
        self, name: str, typespec: Any, default: Any, help: str, choices: Sequence[str] | None = None
    ) -> None:
        """Register one option."""


def register(loader: Loader, environment: Mapping[str, str]) -> list[str]:
    """Register all options, with the predecessor's flags as defaults; return a warning for each flag that is no use."""
    warnings = []
    for option in OPTIONS:
        default = option.default
        if option.env and (word := environment.get(option.env, "")):
            try:
                default = _from_environment(option, word)
            except ValueError as problem:
                warnings.append(f"{option.env}={word!r} is ignored: {problem}")
        loader.add_option(option.full_name, option.typespec, default, option.help, option.choices or None)
    return warnings


def parse(values: Any) -> Settings:
    """Return the settings of mitmproxy's option object. Raises OptionsError, naming the option, for a bad value."""
    said: dict[str, Any] = {}
    for option in OPTIONS:
        try:
            said[option.name] = _check(option, getattr(values, option.full_name))
        except ValueError as problem:
            raise OptionsError(f"{option.full_name}: {problem}") from problem  # type: ignore[no-untyped-call]
    backend = said["backend"]
    own = backend if backend in ("codex", "scripted") else None
    policy = {name: said[name] for name in Policy.__dataclass_fields__} | {"backend": "auto" if own else backend}
    edge = ("upstream", "api_key", "codex_command", "codex_port", "scripted_port", "capture")
    return Settings(
        policy=Policy(**policy),
        own_backend=own,
        origins=Origins(said["cors_origins"]),
        idle_timeout=float(said["idle_timeout"]),
        **{name: said[name] for name in edge},
    )


def _from_environment(option: Option, word: str) -> Value:
    word = word.strip("\r\n") if option.name == "tool_block_delimiter" else word.strip()
    if isinstance(option.default, bool):
        return _boolean(word)
    if isinstance(option.default, int):
        number = int(word) if re.fullmatch(r"[+-]?\d{1,12}", word) else None
        if number is None or number < option.least:
            raise ValueError(f"got {word!r}, expected a whole number, {option.least} or more")
        return number
    if not option.choices:
        return word
    word = word.lower()
    if word not in option.choices and {"on", "off"} <= set(option.choices):
        word = "on" if _boolean(word) else "off"
    if word not in option.choices:
        raise ValueError(f"got {word!r}, expected one of {', '.join(option.choices)}")
    return word


def _boolean(word: str) -> bool:
    match word.lower():
        case "1" | "true" | "yes" | "on" | "y" | "t" | "enabled":
            return True
        case "0" | "false" | "no" | "off" | "n" | "f" | "disabled":
            return False
    raise ValueError(f"got {word!r}, expected true or false")


def _check(option: Option, value: Any) -> Any:
    if isinstance(option.default, tuple):
        value = tuple(_words(value))
    elif isinstance(value, int) and not isinstance(value, bool) and value < option.least:
        raise ValueError(f"got {value}, expected {option.least} or more")
    elif option.choices and value not in option.choices:
        raise ValueError(f"got {value!r}, expected one of {', '.join(option.choices)}")
    return _PARSERS[option.name](value) if option.name in _PARSERS else value


def _words(values: Iterable[str]) -> list[str]:
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


def _sentinel(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", value) or value in ("use_tool", "think"):
        raise ValueError(f"got {value!r}, expected a tag name of at most 64 letters, digits, '_', '-' or '.'")
    return value


def _delimiter(value: str) -> str:
    return value.replace("\\n", "\n").replace("\\t", "\t")


def _port(value: int) -> int:
    if value > 65535:
        raise ValueError(f"got {value}, expected a port number from 0 to 65535")
    return value


def _command(value: str) -> tuple[str, ...]:
    words = tuple(shlex.split(value))
    if not words:
        raise ValueError("got nothing, expected a command line")
    return words


def _upstream(value: str) -> Upstream | None:
    if not value:
        return None
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError(f"got {value!r}, expected a URL such as http://127.0.0.1:11434/v1")
    return Upstream(parts.scheme, parts.hostname, _url_port(parts), parts.path.rstrip("/"))


def _url_port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _origins(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if value not in ("*", "null") and not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s*]*(:\*)?", value):
            raise ValueError(f"got {value!r}, expected an origin such as https://example.com, without a path")
    return values


def _allowed_names(values: tuple[str, ...]) -> frozenset[str]:
    return frozenset(values)


def _origin_matches(pattern: str, origin: str) -> bool:
    if pattern == "*":
        return True
    if pattern.endswith(":*"):
        stem, _, port = origin.lower().partition(pattern[:-2].lower())
        return stem == "" and (port == "" or re.fullmatch(r":\d{1,5}", port) is not None) and origin != ""
    return pattern.lower() == origin.lower()


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "sentinel": _sentinel,
    "tool_block_delimiter": _delimiter,
    "codex_port": _port,
    "scripted_port": _port,
    "codex_command": _command,
    "upstream": _upstream,
    "cors_origins": _origins,
    "tool_allowlist": _allowed_names,
    "tool_denylist": _allowed_names,
}
