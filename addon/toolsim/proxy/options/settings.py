"""The operator's settings: the values of the options, validated and parsed once.

1. *Single values.* Each option whose value is more than a word or a number has a parser.
2. *Combinations.* Options that are valid separately but useless together prevent startup, so that no option is silently
   ignored.
3. *Policy.* Most options set the policy field of the same name. Some options set several fields. Recordings contain the
   names of the fields, not of the options.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mitmproxy.exceptions import OptionsError

from toolsim.core.policy import Policy
from toolsim.plugins import BUILTIN
from toolsim.proxy.address import Upstream, is_loopback, parse_url
from toolsim.proxy.cors import Origins
from toolsim.proxy.options.api_keys import FILE, ApiKeys
from toolsim.proxy.options.models_file import ModelsFile
from toolsim.proxy.options.option import Option
from toolsim.proxy.options.table import OPTIONS
from toolsim.request.fields import read_fields
from toolsim.request.transforms import expand
from toolsim.rounds.round_planner import RoundLimits
from toolsim.stores.url import StoreUrl, file_problem, parse_store_url

if TYPE_CHECKING:
    from toolsim.mcp.servers import Server

MAX_RETRY = 3
"""Maximum value of ``toolsim_retry``. A model that fails four times in a row is unlikely to succeed."""

METRICS_LABELS = ("model", "tool")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an exchange, in seconds (0 means no timeout) and in bytes after decoding."""

    keepalive: float = 10.0
    connect_timeout: float = 10.0
    idle_timeout: float = 300.0
    max_request_bytes: int = 32 * 1024 * 1024
    max_answer_bytes: int = 32 * 1024 * 1024
    max_event_bytes: int = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Mcp:
    """The settings for MCP. ``servers`` are the servers in the MCP configuration file."""

    servers: tuple[Server, ...] = ()
    runs_clients: bool = False
    hosts: tuple[str, ...] = ()
    approval: Literal["client", "operator"] = "client"

    @property
    def is_used(self) -> bool:
        """Whether any MCP server can be used."""
        return bool(self.servers) or self.runs_clients


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's settings."""

    policy: Policy = Policy()
    builtin: str | None = None
    """The name of the built-in backend, or None if another backend is used."""
    upstream: Upstream | None = None
    models: ModelsFile | None = None
    """The file that specifies the backend of each model, or None."""
    api_key: ApiKeys | None = None
    """The accepted client keys, or None if no key is required."""
    upstream_key: str = ""
    codex_command: tuple[str, ...] = ("codex", "app-server")
    model: Path | None = None
    capture: str = ""
    metrics_labels: frozenset[str] = frozenset()
    origins: Origins = Origins()
    names: frozenset[str] = frozenset()
    """The listener's names, in addition to its addresses and localhost (``access.own_names``)."""
    limits: Limits = Limits()
    bounds: RoundLimits = RoundLimits()
    store: StoreUrl | None = None
    mcp: Mcp = Mcp()
    profiles: str = "auto"
    """The value of the ``toolsim_profiles`` option. ``profiles.with_profiles`` reads the selected profiles."""
    by_hand: frozenset[str] = frozenset()
    """The names, without ``toolsim_``, of the options that the operator set explicitly."""
    drain_timeout: int = 0
    """Maximum time, in seconds, for running answers to finish during a drain."""
    websocket: bool = True
    """Whether WebSocket connections are served. This is mitmproxy's own ``websocket`` option."""


def parse(values: Any, *, keepalive: float = Limits().keepalive) -> Settings:
    """Return the settings from mitmproxy's options. Raises OptionsError, which names the option, if a value is invalid.

    ``keepalive`` is the only limit without an option.
    """
    parsed = {option.name: parse_value(option, getattr(values, option.full_name)) for option in OPTIONS}
    for is_useless, message in USELESS:
        if is_useless(parsed):
            raise OptionsError(message)  # type: ignore[no-untyped-call]
    backend = parsed["backend"]
    builtin = backend if backend in BUILTIN else None
    policy = policy_fields(parsed) | {"backend": "auto" if builtin else backend}
    largest = parsed["max_body_bytes"]
    # These settings have the same names as their options, so they are passed unchanged.
    own = {name: value for name, value in parsed.items() if name in Settings.__dataclass_fields__}
    return Settings(
        policy=Policy(**policy),
        builtin=builtin,
        origins=Origins(parsed["cors_origins"]),
        limits=Limits(keepalive, parsed["connect_timeout"], parsed["idle_timeout"], largest, largest),
        bounds=RoundLimits(parsed["max_rounds"], text_bytes=largest),
        mcp=_mcp(parsed),
        **own,
    )


def parse_value(option: Option, value: Any) -> Any:
    """Return the parsed value of a single option, regardless of other options.

    Raises OptionsError, naming the option, if the value is invalid.
    """
    try:
        value = option.checked(value)
        return _PARSERS[option.name](value) if option.name in _PARSERS else value
    except ValueError as problem:
        raise OptionsError(f"{option.full_name}: {problem}") from problem  # type: ignore[no-untyped-call]


def _mcp(parsed: Mapping[str, Any]) -> Mcp:
    hosts = tuple(host for host in parsed["mcp_hosts"] if host != "config")
    mcp = Mcp(parsed["mcp_config"], bool(parsed["mcp_hosts"]), hosts, parsed["mcp_approval"])
    if not mcp.is_used:
        return mcp
    from toolsim.mcp.runtime import engine

    if missing := engine().missing():
        raise OptionsError(f"toolsim_mcp_config and toolsim_mcp_hosts: {missing}")  # type: ignore[no-untyped-call]
    return mcp


def _sentinel(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", value) or value in ("use_tool", "think"):
        raise ValueError(f"got {value!r}, expected a tag name of at most 64 letters, digits, '_', '-' or '.'")
    return value


def _mcp_config(value: str) -> tuple[Server, ...]:
    if not value:
        return ()
    from toolsim.mcp.runtime import engine

    try:
        return engine().read_file(Path(value).expanduser().read_text("utf-8"), os.environ)
    except OSError as problem:
        raise ValueError(f"cannot read {value!r}: {problem.strerror}") from problem
    except ValueError as problem:
        raise ValueError(f"{value}: {problem}") from problem


def _models(value: str) -> ModelsFile | None:
    return ModelsFile(Path(value).expanduser(), os.environ) if value else None


def _api_key(value: str) -> ApiKeys | None:
    if not value.startswith(FILE):
        return ApiKeys.single(value) if value else None
    return ApiKeys.of_file(Path(value.removeprefix(FILE)).expanduser())


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
        raise ValueError(f"the model file {value!r} does not exist")
    return file


def _capture(value: str) -> str:
    if value:
        _check_folder(Path(value).expanduser(), value)
    return value


def _store(value: str) -> StoreUrl | None:
    url = parse_store_url(value)
    if url is not None and url.kind == "sqlite":
        file = Path(url.location)
        if file.is_dir():
            raise ValueError(f"got {value!r}, expected a file: {file} is a folder")
        _check_folder(file.parent, value)
        if not file.exists():
            return url
        if not os.access(file, os.R_OK | os.W_OK):
            raise ValueError(f"{file} is not writable")
        if problem := file_problem(url):
            raise ValueError(
                f"got {value!r}, which is not a store that this toolsim can use: {problem}; use another path"
            )
    return url


def _check_folder(folder: Path, value: str) -> None:
    if problem := folder_problem(folder):
        raise ValueError(f"got {value!r}, expected a writable folder: {problem}")


def folder_problem(folder: Path) -> str:
    """Return the reason why a folder is not writable, or "" if it is. The folder might not exist yet."""
    place = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    if not place.is_dir():
        return f"{place} is a file"
    return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} is read-only for this user"


def _delimiter(value: str) -> str:
    match value.lower():  # In toolsim's predecessor, this option was a Boolean flag.
        case "1" | "true" | "yes" | "on":
            return "\n\n"
        case "0" | "false" | "no" | "off":
            return ""
    return value.replace("\\n", "\n").replace("\\t", "\t")


def _command(value: str) -> tuple[str, ...]:
    words = tuple(shlex.split(value))
    if not words:
        raise ValueError("got an empty value, expected a command line")
    return words


def _upstream(value: str) -> Upstream | None:
    return parse_url(value) if value else None


def _origins(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if value not in ("*", "null") and not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s*]*(:\*)?", value):
            raise ValueError(f"got {value!r}, expected an origin such as https://example.com, without a path")
    return values


def _tool_names(values: tuple[str, ...]) -> tuple[str, ...]:
    if "!" in values:
        raise ValueError("got '!', expected a tool's name after the exclamation mark")
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
    "api_key": _api_key,
    "models": _models,
    "mcp_config": _mcp_config,
    "mcp_hosts": _hosts,
    "tool_block_delimiter": _delimiter,
    "codex_command": _command,
    "retry": _retry,
    "request_overrides": _fields,
    "request_defaults": _fields,
    "transforms": expand,
    "upstream": _upstream,
    "store": _store,
    "capture": _capture,
    "cors_origins": _origins,
    "tool_allowlist": _tool_names,
    "metrics_labels": _metrics_labels,
}


# -- combinations of options --

_DEMANDED = ("json_schema", "gbnf", "structural_tag")

# Combinations of options that are useless together. Each entry consists of a predicate and a message that explains the
# remedy. The argument of the predicate contains the parsed values by short option name.
USELESS: tuple[tuple[Callable[[Mapping[str, Any]], bool], str], ...] = (
    (
        lambda given: bool(_included(given)) and _included(given) <= _excluded(given),
        "toolsim_tool_allowlist excludes every tool that it includes, so no tool would be on offer.",
    ),
    (
        lambda given: given["tool_use_mode"] == "disabled" and bool(given["tool_allowlist"]),
        "toolsim_tool_allowlist has no effect with toolsim_tool_use_mode=disabled, which offers no tools.",
    ),
    (
        lambda given: given["second_opinion"] == "on" and given["tool_use_mode"] in ("enforced", "disabled"),
        "toolsim_second_opinion=on has no effect with this toolsim_tool_use_mode, because it checks only calls that a "
        "model makes unprompted.",
    ),
    (
        lambda given: bool(given["retry"]) and given["max_rounds"] == 1,
        "toolsim_retry requires a second round: set toolsim_max_rounds to 2 or more.",
    ),
    (
        lambda given: bool(given["catalog_budget"]) and given["max_rounds"] == 1,
        "toolsim_catalog_budget requires a second round, in which the model looks up tools: set toolsim_max_rounds "
        "to 2 or more.",
    ),
    (
        lambda given: bool(given["catalog_budget"]) and given["mode"] == "native",
        "toolsim_catalog_budget has no effect with toolsim_mode=native, which does not use toolsim's catalog of tools.",
    ),
    (
        lambda given: given["constrain"] in _DEMANDED and given["mode"] == "native",
        "This toolsim_constrain has no effect with toolsim_mode=native, which does not use toolsim's call format.",
    ),
    (
        lambda given: given["model"] is not None and given["backend"] != "local",
        "toolsim_model has no effect without toolsim_backend=local.",
    ),
)


def check_together(settings: Settings, hosts: Iterable[str]) -> None:
    """Raise OptionsError for settings that are valid separately but not together.

    ``hosts`` are the listeners' addresses. They are checked because a Codex login must not be shared with other
    machines.
    """
    if settings.builtin == "local" and settings.model is None:
        raise OptionsError("toolsim_backend=local requires toolsim_model=FILE.gguf.")  # type: ignore[no-untyped-call]
    if settings.builtin != "codex" or settings.api_key:
        return
    for host in hosts:
        # If the host is "", mitmproxy listens on all addresses. This is allowed, because access control rejects each
        # request from another machine.
        if host and not is_loopback(host):
            message = f"toolsim_backend=codex on {host} would share your login with others: set toolsim_api_key."
            raise OptionsError(message)  # type: ignore[no-untyped-call]


def _included(given: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name in given["tool_allowlist"] if not name.startswith("!"))


def _excluded(given: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name[1:] for name in given["tool_allowlist"] if name.startswith("!"))


# -- the policy --


def policy_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy fields that these option values set, by field name."""
    fields: dict[str, Any] = {}
    for name, value in values.items():
        fields |= _decided(name, value)
    return fields


def _decided(option: str, value: Any) -> dict[str, Any]:
    match option:
        case "untagged":
            uses_tool = value != "no_use_tool"
            return {"untagged": value if uses_tool else "off", "use_tool": uses_tool}
        case "output_mode":
            in_chat = value in ("obsidian-xml", "obsidian-xml-both")
            in_responses = value in ("obsidian-xml-responses", "obsidian-xml-both")
            return {
                "output_mode": "obsidian-xml" if in_chat else "openai-json",
                "responses_output_mode": "obsidian-xml" if in_responses else "openai-json",
            }
        case "stop_after_tools":
            return {
                "stop_after_tools": {"first": "on", "drop": "off"}.get(value, value),
                "stop_after_tools_mode": "first" if value == "first" else "burst",
                "suppress_tail_after_tools": value == "drop",
            }
        case "tool_block_max":
            return {"tool_block_max": value, "parallel_tool_calls": value != 1}
        case "tool_allowlist":
            return {
                "tool_allowlist": frozenset(name for name in value if not name.startswith("!")),
                "tool_denylist": frozenset(name[1:] for name in value if name.startswith("!")),
            }
    return {option: value} if option in Policy.__dataclass_fields__ else {}
