"""What the operator decided: the options' values, checked and parsed once."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mitmproxy.exceptions import OptionsError

from toolsimlib.loop.course import Bounds
from toolsimlib.plan import Policy
from toolsimlib.proxy.address import Upstream, parse_url
from toolsimlib.proxy.cors import Origins
from toolsimlib.proxy.options.combinations import useless
from toolsimlib.proxy.options.policy import policy_fields
from toolsimlib.proxy.options.reading import checked
from toolsimlib.proxy.options.table import BUILTIN, OPTIONS
from toolsimlib.request.fields import read_fields
from toolsimlib.request.transforms import expand
from toolsimlib.store.opening import Address, read_address

if TYPE_CHECKING:
    from toolsimlib.hosted.servers import Server

MAX_RETRY = 3
"""A model that fails four times in a row fails the fifth time too."""

METRICS_LABELS = ("model", "tool")


@dataclass(frozen=True, slots=True)
class Limits:
    """What an exchange may take: seconds, where 0 waits for ever, and bytes, decoded."""

    keepalive: float = 10.0
    connect_timeout: float = 10.0
    idle_timeout: float = 300.0
    max_request_bytes: int = 32 * 1024 * 1024
    max_answer_bytes: int = 32 * 1024 * 1024
    max_event_bytes: int = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Mcp:
    """What the operator decided about MCP servers; ``servers``: those of the file."""

    servers: tuple[Server, ...] = ()
    runs_clients: bool = False
    hosts: tuple[str, ...] = ()
    approval: Literal["client", "operator"] = "client"

    @property
    def is_used(self) -> bool:
        """Whether any server may be asked."""
        return bool(self.servers) or self.runs_clients


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator decided."""

    policy: Policy = Policy()
    builtin: str | None = None
    """The built-in backend that answers, if any."""
    upstream: Upstream | None = None
    api_key: str = ""
    upstream_key: str = ""
    codex_command: tuple[str, ...] = ("codex", "app-server")
    model: Path | None = None
    capture: str = ""
    metrics_labels: frozenset[str] = frozenset()
    origins: Origins = Origins()
    names: frozenset[str] = frozenset()
    """What else the listener is called, beside its addresses and localhost (``access.own_names``)."""
    limits: Limits = Limits()
    bounds: Bounds = Bounds()
    store: Address | None = None
    mcp: Mcp = Mcp()
    profiles: str = "auto"
    """Which ones apply; ``profiles.with_profiles`` reads them."""
    by_hand: frozenset[str] = frozenset()
    """The options that were set by hand, by their short names."""
    drain_timeout: int = 0
    """Seconds that answers may take once the proxy is to end."""
    websocket: bool = True
    """Whether WebSocket connections are served: mitmproxy's own option of that name."""

    def needs_lazy_connections(self, is_reverse: bool) -> bool:
        """Return whether mitmproxy must not connect before it has read a request.

        Eagerly connected, a target that is down or does not exist ends the client's connection before we hear of the
        request; and requests that are sent elsewhere need no live target.
        """
        return is_reverse or self.builtin is not None or self.upstream is not None


def parse(values: Any, *, keepalive: float = Limits().keepalive) -> Settings:
    """Return the settings of mitmproxy's option object. Raises OptionsError, naming the option, for a bad value.

    ``keepalive``: the limit that is not an option.
    """
    parsed: dict[str, Any] = {}
    for option in OPTIONS:
        try:
            value = checked(option, getattr(values, option.full_name))
            parsed[option.name] = _PARSERS[option.name](value) if option.name in _PARSERS else value
        except ValueError as problem:
            raise OptionsError(f"{option.full_name}: {problem}") from problem  # type: ignore[no-untyped-call]
    if why := useless(parsed):
        raise OptionsError(why)  # type: ignore[no-untyped-call]
    backend = parsed["backend"]
    builtin = backend if backend in BUILTIN else None
    policy = policy_fields(parsed) | {"backend": "auto" if builtin else backend}
    largest = parsed["max_body_bytes"]
    # Of the same name as their option.
    own = {name: value for name, value in parsed.items() if name in Settings.__dataclass_fields__}
    return Settings(
        policy=Policy(**policy),
        builtin=builtin,
        origins=Origins(parsed["cors_origins"]),
        limits=Limits(keepalive, parsed["connect_timeout"], parsed["idle_timeout"], largest, largest),
        bounds=Bounds(parsed["max_rounds"], text_bytes=largest),
        mcp=_mcp(parsed),
        **own,
    )


def _mcp(parsed: Mapping[str, Any]) -> Mcp:
    hosts = tuple(host for host in parsed["mcp_hosts"] if host != "config")
    mcp = Mcp(parsed["mcp_config"], bool(parsed["mcp_hosts"]), hosts, parsed["mcp_approval"])
    if not mcp.is_used:
        return mcp
    from toolsimlib.hosted.pool import MISSING, is_installed

    if not is_installed():
        raise OptionsError(f"toolsim_mcp_config and toolsim_mcp_hosts: {MISSING}")  # type: ignore[no-untyped-call]
    return mcp


def _sentinel(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", value) or value in ("use_tool", "think"):
        raise ValueError(f"got {value!r}, expected a tag name of at most 64 letters, digits, '_', '-' or '.'")
    return value


def _mcp_config(value: str) -> tuple[Server, ...]:
    if not value:
        return ()
    from toolsimlib.hosted.servers import read_file

    try:
        return read_file(Path(value).expanduser().read_text("utf-8"), os.environ)
    except OSError as problem:
        raise ValueError(f"got {value!r}, which cannot be read: {problem.strerror}") from problem
    except ValueError as problem:
        raise ValueError(f"{value}: {problem}") from problem


def _hosts(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not re.fullmatch(r"[A-Za-z0-9.-]{1,253}(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?", value):
            raise ValueError(f"got {value!r}, expected a host such as mcp.example.com or 127.0.0.1:3000")
    return values


def _model(value: str) -> Path | None:
    if not value:
        return None
    file = Path(value).expanduser()
    if not file.is_file():
        raise ValueError(f"got {value!r}, expected a model file (GGUF): there is none of that name")
    return file


def _delimiter(value: str) -> str:
    match value.lower():  # As the predecessor read its flag.
        case "1" | "true" | "yes" | "on":
            return "\n\n"
        case "0" | "false" | "no" | "off":
            return ""
    return value.replace("\\n", "\n").replace("\\t", "\t")


def _command(value: str) -> tuple[str, ...]:
    words = tuple(shlex.split(value))
    if not words:
        raise ValueError("got no words, expected a command line")
    return words


def _upstream(value: str) -> Upstream | None:
    return parse_url(value) if value else None


def _origins(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if value not in ("*", "null") and not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s*]*(:\*)?", value):
            raise ValueError(f"got {value!r}, expected an origin such as https://example.com, without a path")
    return values


def _names(values: tuple[str, ...]) -> tuple[str, ...]:
    if "!" in values:
        raise ValueError("got '!', expected a tool's name after it")
    return values


def _metrics_labels(values: tuple[str, ...]) -> frozenset[str]:
    if unknown := [value for value in values if value not in METRICS_LABELS]:
        raise ValueError(f"got {unknown[0]!r}, expected {' or '.join(METRICS_LABELS)}")
    return frozenset(values)


def _fields(value: str) -> str:
    read_fields(value)
    return value


def _retry(value: int) -> int:
    if value > MAX_RETRY:
        raise ValueError(f"got {value}, expected 0 to {MAX_RETRY}")
    return value


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "sentinel": _sentinel,
    "model": _model,
    "mcp_config": _mcp_config,
    "mcp_hosts": _hosts,
    "tool_block_delimiter": _delimiter,
    "codex_command": _command,
    "retry": _retry,
    "request_overrides": _fields,
    "llm_options_defaults": _fields,
    "transforms": expand,
    "upstream": _upstream,
    "store": read_address,
    "cors_origins": _origins,
    "tool_allowlist": _names,
    "metrics_labels": _metrics_labels,
}
