"""The operator's file of servers, in the format that MCP clients share.

It has three more keys (``require_approval``, ``allowed_tools``, ``timeout``: the seconds that a call, or the start, may
take)::

    {"mcpServers": {"files": {"command": "npx", "args": ["-y", "…"], "env": {"KEY": "${KEY}"}, "cwd": "/srv"},
                    "docs":  {"url": "https://…/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}, "type": "http"}}}

``${NAME}`` and ``${env:NAME}`` name variables of the proxy's environment, so that it need not contain secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from toolsimlib.errors import BadRequest
from toolsimlib.hosted.servers import LABEL, SECONDS, Server, check_url, rules, strings
from toolsimlib.wire.json_codec import parse_object
from toolsimlib.wire.json_fields import optional, required, wrong_type

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")


def read_file(text: str, environment: Mapping[str, str]) -> tuple[Server, ...]:
    """Read the operator's file. Raises ValueError, whose message quotes no value of the file."""
    document = parse_object(text.encode())
    if document is None:
        raise ValueError("it is not a JSON object")
    declared = document.get("mcpServers", document.get("servers"))
    if not isinstance(declared, dict):
        raise ValueError('expected an object "mcpServers", which has a member for each server')
    return tuple(
        _server(label, value, environment)
        for label, value in declared.items()
        if not (isinstance(value, dict) and value.get("disabled") is True)
    )


def _server(label: str, value: Any, environment: Mapping[str, str]) -> Server:
    if not LABEL.fullmatch(label):
        raise ValueError(f"server {label[:64]!r}: expected a name of at most 64 letters, digits, '_', '-' or '.'")

    def known(text: str) -> str:
        def variable(found: re.Match[str]) -> str:
            if found[1] not in environment:
                raise ValueError(f"server {label!r}: there is no environment variable {found[1]}")
            return environment[found[1]]

        return _VARIABLE.sub(variable, text)

    try:
        if not isinstance(value, dict):
            raise wrong_type(value, "an object", label)
        allowed, free = rules(value, label)
        timeout = _timeout(value, label)
        url, kind = optional(value, "url", str, label), value.get("type", value.get("transport"))
        if url is not None:
            check_url(known(url), f"{label}.url")
            headers = tuple((name, known(text)) for name, text in strings(value, "headers", label))
            way: Literal["http", "sse"] = "sse" if kind == "sse" else "http"
            return Server(label, url=known(url), headers=headers, kind=way, allowed=allowed, free=free, timeout=timeout)
        command = known(required(value, "command", str, label))
        words = optional(value, "args", list, label) or []
        if not all(isinstance(word, str) for word in words):
            raise BadRequest("expected an array of strings", f"{label}.args")
        line = (command, *map(known, words))
        folder = known(optional(value, "cwd", str, label) or "")
        environ = tuple((name, known(text)) for name, text in strings(value, "env", label))
        return Server(label, line, environ, folder, allowed=allowed, free=free, timeout=timeout)
    except BadRequest as bad:
        raise ValueError(f"server {label!r}: {bad.error.message}") from bad


def _timeout(value: Mapping[str, Any], param: str) -> float:
    seconds = value.get("timeout", SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e6:
        message = f"Invalid '{param}.timeout': expected seconds above 0, got {str(seconds)[:40]!r}."
        raise BadRequest(message, f"{param}.timeout")
    return float(seconds)
