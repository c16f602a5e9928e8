"""Parses the settings of MCP servers, from the operator's file and from requests.

The file has the usual format of MCP clients, with four additional keys: ``require_approval``, ``allowed_tools``,
``timeout`` (seconds for startup and for each call) and ``web_search`` (the tool that searches the web)::

    {"mcpServers": {"files": {"command": "npx", "args": ["-y", "…"], "env": {"KEY": "${KEY}"}, "cwd": "/srv"},
                    "docs":  {"url": "https://…/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}, "type": "http"}}}

1. ``${NAME}`` and ``${env:NAME}`` refer to variables of the proxy's environment, so that the file does not have to
   contain secrets.
2. Approval is the default: a missing ``require_approval`` means ``always``. If ``require_approval``
   is an object, a tool that its ``never`` filter does not select also needs approval. For a server in the file, a
   request can require approval for more tools, but never for fewer.
3. A request names a server in the file by its label, or a server on an allowed host by its URL. If a request combines a
   label from the file with another URL, it is rejected, since the model and the user identify servers by their labels.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

from toolsim.core.errors import BadRequest
from toolsim.mcp.servers import SECONDS, Filter, Server
from toolsim.wire.json_codec import parse_object
from toolsim.wire.json_fields import optional, required, wrong_type

_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_MAX_HEADERS = 32
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
EVERY, NONE = Filter(), Filter(frozenset())


def read_file(text: str, environment: Mapping[str, str]) -> tuple[Server, ...]:
    """Parse the operator's file.

    Raises ValueError if the file is invalid. The message does not contain values from the file, which might be secret.
    """
    document = parse_object(text.encode())
    if document is None:
        raise ValueError("the file is not a JSON object")
    declared = document.get("mcpServers", document.get("servers"))
    if not isinstance(declared, dict):
        raise ValueError('expected an object "mcpServers" with a member for each server')
    return tuple(
        _server(label, value, environment)
        for label, value in declared.items()
        if not (isinstance(value, dict) and value.get("disabled") is True)
    )


def _server(label: str, value: Any, environment: Mapping[str, str]) -> Server:
    if not _LABEL.fullmatch(label):
        raise ValueError(f"server {label[:64]!r}: expected a name of at most 64 letters, digits, '_', '-' or '.'")

    def known(text: str) -> str:
        def variable(found: re.Match[str]) -> str:
            if found[1] not in environment:
                raise ValueError(f"server {label!r}: the environment variable {found[1]} is not set")
            return environment[found[1]]

        return _VARIABLE.sub(variable, text)

    try:
        if not isinstance(value, dict):
            raise wrong_type(value, "an object", label)
        allowed, free, timeout = _allowed(value, label), _free(value, label), _timeout(value, label)
        search = optional(value, "web_search", str, label) or ""
        url, kind = optional(value, "url", str, label), value.get("type", value.get("transport"))
        if url is not None:
            _check_url(known(url), f"{label}.url")
            headers = tuple((name, known(text)) for name, text in _strings(value, "headers", label))
            way: Literal["http", "sse"] = "sse" if kind == "sse" else "http"
            place = Server(label, url=known(url), headers=headers, kind=way)
            return replace(place, allowed=allowed, free=free, timeout=timeout, web_search=search)
        command = known(required(value, "command", str, label))
        words = optional(value, "args", list, label) or []
        if not all(isinstance(word, str) for word in words):
            raise BadRequest("expected an array of strings", f"{label}.args")
        line = (command, *map(known, words))
        folder = known(optional(value, "cwd", str, label) or "")
        environ = tuple((name, known(text)) for name, text in _strings(value, "env", label))
        place = Server(label, line, environ, folder)
        return replace(place, allowed=allowed, free=free, timeout=timeout, web_search=search)
    except BadRequest as bad:
        raise ValueError(f"server {label!r}: {bad.error.message}") from bad


def _timeout(value: Mapping[str, Any], param: str) -> float:
    seconds = value.get("timeout", SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e6:
        message = f"Invalid '{param}.timeout': expected a positive number of seconds, got {str(seconds)[:40]!r}."
        raise BadRequest(message, f"{param}.timeout")
    return float(seconds)


def _strings(value: Mapping[str, Any], key: str, param: str) -> tuple[tuple[str, str], ...]:
    """Return the members of the object in a field, such as ``headers``.

    Raises BadRequest if any value is not a single-line string.
    """
    given = optional(value, key, dict, param) or {}
    for name, text in given.items():
        if not isinstance(text, str) or re.search(r"[\r\n\0]", name + text) or not name:
            raise BadRequest(
                f"Invalid '{param}.{key}': expected names and values that are single-line strings.", f"{param}.{key}"
            )
    if len(given) > _MAX_HEADERS and key == "headers":
        raise BadRequest(f"Invalid '{param}.{key}': expected at most {_MAX_HEADERS} headers.", f"{param}.{key}")
    return tuple(given.items())


def _filter(value: Any, param: str) -> Filter:
    match value:
        case list() if all(isinstance(each, str) for each in value):
            return Filter(frozenset(value))
        case dict():
            names = optional(value, "tool_names", list, param)
            read_only = optional(value, "read_only", bool, param)
            # In requests, only the filters of the Messages API have this field.
            excluded = optional(value, "excluded_tool_names", list, param) or ()
            return Filter(
                None if names is None else frozenset(map(str, names)), read_only, frozenset(map(str, excluded))
            )
    raise wrong_type(value, "an array of strings or an object", param)


def _allowed(value: Mapping[str, Any], param: str) -> tuple[Filter, ...]:
    given = value.get("allowed_tools")
    return () if given is None else (_filter(given, f"{param}.allowed_tools"),)


def _free(value: Mapping[str, Any], param: str) -> tuple[Filter, ...]:
    """Return filters for tools that need no approval. A tool in both ``never`` and ``always`` needs approval."""
    param = f"{param}.require_approval"
    match value.get("require_approval"):
        case None | "always":
            return ()
        case "never":
            return (EVERY,)
        case dict() as given:
            never = _filter(given["never"], f"{param}.never") if given.get("never") is not None else NONE
            always = _filter(given["always"], f"{param}.always") if given.get("always") is not None else NONE
            if always.names is None:
                raise BadRequest(f"Invalid '{param}.always': expected an object with 'tool_names'.", f"{param}.always")
            if never.names is not None:
                never = replace(never, names=never.names - always.names)
            return (never,)
        case other:
            raise BadRequest(
                f"Invalid '{param}': expected 'always', 'never' or an object, got {str(other)[:40]!r}.", param
            )


def _check_url(url: str, param: str) -> str:
    """Return the host and port of a URL. Raises BadRequest if it is not an HTTP URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        is_one = bool(port and parts.hostname) and not re.search(r"[\s\\]", url)
    except (ValueError, KeyError):
        is_one = False
    if not is_one:
        raise BadRequest(f"Invalid '{param}': expected an http or https URL.", param, "invalid_value")
    return f"{parts.hostname}:{port}"


def is_host_allowed(server: Server, hosts: Collection[str]) -> bool:
    """Return whether a request can use the URL of ``server``. See ``read_tool`` for ``hosts``."""
    try:
        return server.url is not None and _is_among(_check_url(server.url, ""), hosts)
    except BadRequest:
        return False


def _is_among(place: str, hosts: Collection[str]) -> bool:
    return place in {each if re.search(r":\d+$", each) else f"{each}:443" for each in map(str.lower, hosts)}


def read_tool(declared: Mapping[str, Any], param: str, known: Mapping[str, Server], hosts: Collection[str]) -> Server:
    """Parse an ``mcp`` tool of a request. ``known`` contains the servers in the operator's file, by label.

    ``hosts`` contains the hosts that a client can name, as ``host`` (https) or ``host:port``. Raises BadRequest if the
    tool is invalid, or its server is unknown or not allowed.
    """
    label = required(declared, "server_label", str, param)
    url = optional(declared, "server_url", str, param)
    allowed, free = _allowed(declared, param), _free(declared, param)
    deferred = tuple(
        (name, value is True) for name, value in (optional(declared, "deferred", dict, param) or {}).items()
    )
    defers = optional(declared, "defer_loading", bool, param) or False
    for other in ("connector_id", "tunnel_id"):
        if declared.get(other) is not None:
            message = f"'{param}.{other}' is not supported: use 'server_label' or 'server_url' instead."
            raise BadRequest(message, f"{param}.{other}", "unsupported_parameter")
    own = known.get(label)
    if own is not None:
        if url is not None and url != own.url:
            message = f"'{label}' is the label of a server on this proxy: omit 'server_url', or choose another label."
            raise BadRequest(message, f"{param}.server_url", "invalid_value")
        # A tool has to match the operator's filters and the client's filters. So a client can only make the rules
        # stricter.
        stricter = own.free
        if declared.get("require_approval") is not None:
            stricter = (*own.free, *free) if own.free and free else ()
        return replace(own, allowed=(*own.allowed, *allowed), free=stricter, defers=defers, deferred=deferred)
    if not _LABEL.fullmatch(label):
        message = f"Invalid '{param}.server_label': expected at most 64 letters, digits, '_', '-' or '.'."
        raise BadRequest(message, f"{param}.server_label", "invalid_value")
    if url is None:
        message = (
            f"Unknown MCP server '{label}': this proxy has no server with this label, and the request has no "
            "'server_url' for it."
        )
        raise BadRequest(message, f"{param}.server_label", "invalid_value")
    place = _check_url(url, f"{param}.server_url")
    if not _is_among(place, hosts):
        message = f"MCP servers at '{place}' are not allowed: toolsim_mcp_hosts does not include this address."
        raise BadRequest(message, f"{param}.server_url", "invalid_value")
    headers = _strings(declared, "headers", param)
    token = optional(declared, "authorization", str, param)
    if token is not None:
        if re.search(r"[\r\n\0]", token):
            raise BadRequest(f"Invalid '{param}.authorization': expected a single line.", f"{param}.authorization")
        others = ((name, value) for name, value in headers if name.lower() != "authorization")
        headers = (*others, ("Authorization", f"Bearer {token}"))
    server = Server(label, url=url, headers=headers, kind="http", allowed=allowed, free=free)
    return replace(server, defers=defers, deferred=deferred)
