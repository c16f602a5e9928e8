"""Who may come in. Pure: what a request says, and the settings in; a refusal out.

Rules, in this order:

1. *A forward proxy has to be asked for.* With a built-in backend the listener is a server, and what is addressed to
   another host, a tunnel (CONNECT) included, is refused: otherwise whoever reaches the listener would reach every
   service of this machine and its network. Who sets ``toolsim_upstream`` asks for a forward proxy, and so does who
   chooses a mode such as socks5 or transparent.
2. *The key.* If one is set, nothing passes without it, whatever its path: a backend may accept spellings of its paths
   that we do not recognise. A client of the forward proxy shows it in ``Proxy-Authorization``.
3. *Web pages*, unless a key excludes them. A page may send requests from any visitor's browser. So its origin
   has to be listed, unless this very listener has served the page; and the name by which it has reached us has to be
   one that only we can have. A page at any other name has had it resolved to our address (DNS rebinding): for the
   browser we are then the page's own server, whose answers it may read.
4. *The Codex login* is lent to other machines only with a key.

A refusal is an ``ApiError``. Programs send no ``Origin``, and may reach us by an address.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toolsim.core.errors import ApiError
from toolsim.proxy.address import host_of, is_address, is_loopback
from toolsim.proxy.cors import Origins
from toolsim.proxy.options.settings import Settings
from toolsim.wire.dialect import APIS

KEY_HEADERS = tuple(dict.fromkeys(name for api in APIS.values() for name in api.key_headers))
"""Where clients send their key: the first as a token, the others bare."""

# Names of the machine that runs a container, inside the container. No public name ends in "internal".
_OF_CONTAINERS = ("host.docker.internal", "host.containers.internal")


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a decision depends on. ``headers`` has lower-case names, or ignores their case."""

    method: str
    # The target.
    host: str
    port: int
    path: str
    headers: Mapping[str, str]
    # The way it came: see ``route``.
    is_reverse: bool = False
    is_direct: bool = False
    # The client uses us as its proxy, and knows it: mitmproxy's modes regular and upstream.
    is_forward: bool = False
    # The client has shown the key to the forward proxy.
    has_proxy_key: bool = False
    # The client is on this machine.
    is_local: bool = True
    # A person at this proxy replays it, so it carries no key.
    is_resent: bool = False
    # The host and port by which the client has reached us, as it wrote them; "" = it did not say.
    reached_at: str = ""


def own_names(hostname: str, listen_hosts: Iterable[str], origins: Origins) -> frozenset[str]:
    """Return the names, in lower case, that lead to the listener beside ``localhost``.

    Those are the machine's, the ones that the operator lets it listen on, and the hosts of the listed web pages.
    """
    stem = hostname.lower().removesuffix(".local")
    names = (stem, f"{stem}.local", *_OF_CONTAINERS, *listen_hosts, *origins.hosts)
    return frozenset(name.lower() for name in names if name)


def check_forward(settings: Settings, *, has_key: bool) -> ApiError | None:
    """Return why nothing, or nothing of this client, is forwarded to other hosts; None if it is."""
    if settings.builtin is not None and settings.upstream is None:
        message = (
            "This listener is not a forward proxy: it serves its own backend, under /v1. Requests for other hosts are "
            "forwarded only if toolsim_upstream is set."
        )
        return ApiError(message, "invalid_request_error", "forbidden", status=403)
    if settings.api_key and not has_key:
        message = (
            "toolsim_api_key is set: a client of this proxy must send it in Proxy-Authorization, as Bearer, or as "
        )
        message += "the password of Basic."
        return ApiError(message, "invalid_request_error", "proxy_authentication_required", status=407)
    return None


def check_server(request: Incoming, settings: Settings, *, is_through: bool, to_builtin: bool) -> ApiError | None:
    """Return why a request is not served, None if it is.

    ``is_through``: it was meant for some other host, and ``toolsim_upstream`` takes it over.
    """
    if settings.api_key:
        token, *bare = (request.headers.get(name, "") for name in KEY_HEADERS)
        has_key = is_bearer(token, settings.api_key) or any(_same(key, settings.api_key) for key in bare)
        if has_key or (is_through and request.has_proxy_key):
            return None
        message = "Incorrect API key provided: toolsim_api_key is set, and this is not it."
        return ApiError(message, "invalid_request_error", "invalid_api_key", status=401)
    if to_builtin and settings.builtin == "codex" and not request.is_local:
        message = "The codex backend is served to other machines only with toolsim_api_key."
        return ApiError(message, "invalid_request_error", "forbidden", status=403)
    # In any other way the name is the target, and only names that are certainly ours count as the listener.
    problem = _foreign_name(request.reached_at, settings) if request.is_reverse else ""
    problem = problem or _foreign_page(request, settings)
    return ApiError(problem, "invalid_request_error", "forbidden", status=403) if problem else None


def is_bearer(header: str, key: str) -> bool:
    """Compare an ``Authorization`` header with the key, in constant time."""
    scheme, _, token = header.strip().partition(" ")
    return _same(token.strip(), key) and scheme.lower() == "bearer"


def is_proxy_key(header: str, key: str) -> bool:
    """Compare a ``Proxy-Authorization`` header with the key: as Bearer, or as Basic with any name."""
    scheme, _, token = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return is_bearer(header, key)
    try:
        sent = base64.b64decode(token.strip(), validate=True).decode("utf-8", "surrogateescape")
    except (ValueError, binascii.Error):
        return False
    return _same(sent.partition(":")[2], key)


def _same(sent: str, key: str) -> bool:
    return hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), key.encode("utf-8", "surrogateescape"))


def _foreign_name(reached_at: str, settings: Settings) -> str:
    """Return what is wrong with the name by which a client has reached us, "" if nothing is."""
    host = host_of(reached_at).lower().rstrip(".")
    # A browser always says where it sends a request.
    if not reached_at or is_address(host) or is_loopback(host) or host in settings.names or settings.origins.are_all:
        return ""
    return (
        f"The host {host[:255]!r} is not a known name of this listener: use its address, list http://{host[:255]} in "
        "toolsim_cors_origins, or set toolsim_api_key."
    )


def _foreign_page(request: Incoming, settings: Settings) -> str:
    """Return what is wrong with the web page that sends a request, "" if nothing is or it is not sent by one."""
    origin = request.headers.get("origin")
    if not origin or settings.origins.allow(origin):
        return ""
    # A page that has come from this listener: the web interface of a backend.
    served_from = request.reached_at.lower()
    if served_from and origin.lower() in (f"http://{served_from}", f"https://{served_from}"):
        return ""
    return f"The origin {origin[:255]} is not listed in toolsim_cors_origins."
