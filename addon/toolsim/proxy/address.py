"""Parses the addresses of backends, and checks whether a host is this machine."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"

_NUMBERS = re.compile(r"[0-9a-fx]+(\.[0-9a-fx]+){0,3}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Upstream:
    """The destination of redirected requests.

    ``path`` is the prefix for the endpoint's path, without a trailing slash.
    """

    scheme: str
    host: str
    port: int
    path: str = ""


def parse_url(url: str) -> Upstream:
    """Parse the base URL of a backend. Raises ValueError if the URL is invalid or contains a password."""
    if (found := _parsed(url)) is not None:
        return found
    if credentials := re.match(r"(\w+://)[^/?#]*@", url):
        # The error message is logged, so it must not contain the credentials.
        plain = credentials[1] + url[credentials.end() :]
        raise ValueError(
            f"got {plain} with a user name or password, expected a URL without them: have clients send a key, or set "
            "toolsim_upstream_key"
        )
    guess = f"http://{url}"
    hint = f"; did you mean {guess}?" if "://" not in url and _parsed(guess) else ""
    raise ValueError(f"got {url!r}, expected a URL such as http://127.0.0.1:11434/v1{hint}")


def _parsed(url: str) -> Upstream | None:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    is_plain = not (parts.query or parts.fragment or parts.username or re.search(r"\s", url))
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        return None
    return Upstream(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))


@lru_cache(maxsize=1024)
def other_places(url: str) -> list[str]:
    """Return other base URLs to try if a server's API is not at ``url``."""
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc}"
    return [place for place in dict.fromkeys((f"{url}/v1", f"{origin}/v1", origin)) if place != url]


def is_loopback(address: str) -> bool:
    """Return whether a host is a loopback address in any spelling, or ``localhost``."""
    name = address.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    parsed = _parse(name)
    return parsed is not None and parsed.is_loopback


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, in any spelling."""
    return _parse(host) is not None


def host_of(authority: str) -> str:
    """Return the host of a ``Host`` header, without port and brackets."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority if authority.count(":") > 1 else authority.partition(":")[0]


def leads_here(address: str) -> bool:
    """Return whether an address always means this machine, for example a loopback address, 0.0.0.0 or ``::``."""
    parsed = _parse(address)
    return is_loopback(address) or (parsed is not None and parsed.is_unspecified)


def url_host(host: str) -> str:
    """Return a listener's host as it appears in a URL. An unspecified address becomes the loopback address."""
    parsed = _parse(host)
    if (parsed is not None and parsed.is_unspecified) or not host:
        return LOOPBACK
    return f"[{host}]" if ":" in host else host


def is_listener(host: str, port: int, sockname: tuple[str | int, ...] | None) -> bool:
    """Return whether a request is addressed to the socket (``sockname``) on which it arrived.

    Only names that certainly belong to this machine count. Any other name, even if it resolves to this machine, might
    belong to an attacker's web page (DNS rebinding).
    """
    if not sockname or port != sockname[1]:
        return False
    return leads_here(host) or host.lower() in (sockname[0], socket.gethostname().lower())


def _parse(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        # ``connect`` accepts short, octal and hexadecimal spellings: 127.1, 0x7f.1, 2130706433.
        try:
            return ipaddress.IPv4Address(socket.inet_aton(address)) if _NUMBERS.fullmatch(address) else None
        except OSError:
            return None
    return (parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None) or parsed
