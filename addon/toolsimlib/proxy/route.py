"""Who is addressed: pure questions about paths, hosts and headers."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Mapping
from typing import Literal

from toolsimlib.plan import Dialect
from toolsimlib.proxy.options import Origins, Upstream

Endpoint = Literal["responses", "chat", "models"]

METRICS = "/toolsim/metrics"

_ENDINGS: Mapping[Endpoint, str] = {"responses": "/responses", "chat": "/chat/completions", "models": "/models"}
# Headers of answers that a page's script needs and may not read without being allowed to.
_EXPOSED = "retry-after, x-request-id, " + ", ".join(
    f"x-toolsim-{name}"
    for name in ("mode", "tool-call-count", "parse-failures", "strict-failures", "repairs", "truncated", "tool-cutoff")
)


def endpoint(path: str) -> Endpoint | None:
    """Return which endpoint of the API a path (with its query) names, whatever precedes it."""
    plain = path.partition("?")[0].rstrip("/")
    return next((kind for kind, ending in _ENDINGS.items() if plain.endswith(ending)), None)


def dialect(method: str, path: str) -> Dialect | None:
    """Return the dialect of a request that may declare tools."""
    kind = endpoint(path)
    return kind if method == "POST" and (kind == "responses" or kind == "chat") else None


def join(upstream: Upstream, path: str) -> str:
    """Return the path of an API request at ``upstream``, whose own path replaces what precedes the endpoint."""
    kind = endpoint(path)
    if not upstream.path or kind is None:
        return path
    query = path.partition("?")[1:]
    return upstream.path + _ENDINGS[kind] + "".join(query)


def is_loopback(address: str) -> bool:
    """Tell whether an IP address, or the name ``localhost``, stays on this machine."""
    if address == "localhost" or address.endswith(".localhost"):
        return True
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def is_listener(host: str, port: int, sockname: tuple[str | int, ...] | None) -> bool:
    """Tell whether a request's target is the very socket (``sockname``) that it came in on.

    Only names that certainly mean this machine count: a foreign name that merely resolves to it may be a web page's
    attempt to reach it (DNS rebinding).
    """
    if not sockname or port != sockname[1]:
        return False
    return is_loopback(host) or host in (sockname[0], socket.gethostname())


def is_bearer(header: str, key: str) -> bool:
    """Compare an ``Authorization`` header with the key, in time that does not depend on where they differ."""
    scheme, _, token = header.strip().partition(" ")
    said = token.strip().encode("utf-8", "surrogateescape")
    return hmac.compare_digest(said, key.encode("utf-8", "surrogateescape")) and scheme.lower() == "bearer"


def cors(origins: Origins, origin: str | None) -> dict[str, str]:
    """Return the headers that let a listed origin read an answer; none for others."""
    if not origin or not origins.allow(origin):
        return {}
    return {"access-control-allow-origin": origin, "access-control-expose-headers": _EXPOSED, "vary": "Origin"}


def preflight(origins: Origins, headers: Mapping[str, str]) -> dict[str, str] | None:
    """Return the headers that answer a preflight of a listed origin; None for anything else."""
    allowed = cors(origins, headers.get("origin"))
    if not allowed or "access-control-request-method" not in headers:
        return None
    asked = headers.get("access-control-request-headers", "")
    allowed |= {
        "access-control-allow-methods": "GET, POST, OPTIONS",
        "access-control-allow-headers": asked if re.fullmatch(r"[\w\-, ]+", asked) else "authorization, content-type",
        "access-control-max-age": "600",
    }
    if headers.get("access-control-request-private-network") == "true":
        allowed["access-control-allow-private-network"] = "true"
    return allowed
