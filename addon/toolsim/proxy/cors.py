"""Cross-origin requests: the web pages that may read responses, and the headers that grant this permission."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from toolsim.proxy.address import host_of
from toolsim.proxy.reporting.summary import HEADERS

# Response headers that scripts need but can read only if they are exposed.
_EXPOSED = ", ".join(("retry-after", "x-request-id", *HEADERS))


@dataclass(frozen=True, slots=True)
class Origins:
    """The origins whose pages may read responses.

    ``:*`` at the end of a pattern matches any port or none, and ``*`` alone matches any origin.
    """

    patterns: tuple[str, ...] = ()

    def allow(self, origin: str) -> bool:
        """Return whether an origin, the value of an ``Origin`` header, is listed."""
        return any(_matches(pattern, origin) for pattern in self.patterns)

    @property
    def are_all(self) -> bool:
        """Whether pages with any origin may read responses."""
        return "*" in self.patterns

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts of the listed web pages, in lower case.

        Origins of programs such as Obsidian (``app://``) have no host.
        """
        found = (re.fullmatch(r"https?://(.*)", pattern.removesuffix(":*"), re.IGNORECASE) for pattern in self.patterns)
        return frozenset(host_of(match[1]).lower() for match in found if match)


def cors_headers(origins: Origins, origin: str | None) -> dict[str, str]:
    """Return the headers that let a page with this origin read a response, or {} if the origin is not listed."""
    if not origin or not origins.allow(origin):
        return {}
    return {"access-control-allow-origin": origin, "access-control-expose-headers": _EXPOSED, "vary": "Origin"}


def preflight_headers(origins: Origins, headers: Mapping[str, str]) -> dict[str, str] | None:
    """Return the headers that answer a preflight request from a listed origin, or None for any other request."""
    allowed = cors_headers(origins, headers.get("origin"))
    if not allowed or "access-control-request-method" not in headers:
        return None
    wanted = headers.get("access-control-request-headers", "")
    allowed |= {
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-allow-headers": wanted if re.fullmatch(r"[\w\-, ]+", wanted) else "authorization, content-type",
        "access-control-max-age": "600",
    }
    if headers.get("access-control-request-private-network") == "true":
        allowed["access-control-allow-private-network"] = "true"
    return allowed


def add_cors(headers: MutableMapping[str, str], allowed: Mapping[str, str]) -> None:
    """Add the ``allowed`` CORS headers to a response, unless the backend has set CORS headers."""
    if not allowed or "access-control-allow-origin" in headers:
        return
    varies = headers.get("vary", "")
    headers.update(allowed)
    if varies and "origin" not in varies.lower():
        headers["vary"] = f"{varies}, Origin"


def _matches(pattern: str, origin: str) -> bool:
    if pattern == "*":
        return True
    if pattern.endswith(":*"):
        stem, _, port = origin.lower().partition(pattern[:-2].lower())
        return stem == "" and (port == "" or re.fullmatch(r":\d{1,5}", port) is not None) and origin != ""
    return pattern.lower() == origin.lower()
