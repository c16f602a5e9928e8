"""Access control: pure functions that take a request and the settings, and return a refusal or None.

The rules apply in this order:

1. *A forward proxy has to be enabled.* With a built-in backend, or with ``toolsim_models``, the listener is a server.
   It then refuses requests to other hosts, including tunnels (CONNECT), since anyone who can reach the listener could
   otherwise reach every service on this machine and its network. Setting ``toolsim_upstream`` enables the forward
   proxy, as does choosing a mode such as socks5 or transparent.
2. *The key.* If any key is set, every request needs a key, regardless of its path, because a backend might accept
   spellings of its paths that toolsim does not recognize. A client of the forward proxy sends its key in
   ``Proxy-Authorization``.
3. *Web pages* are restricted unless a key is required. A page can send requests from any visitor's browser. So its
   origin has to be listed, unless this listener served the page, and the ``Host`` header has to contain a name that
   only this proxy can have. An attacker can make any other name resolve to this machine's address (DNS rebinding). The
   browser then mistakes the proxy for the page's own server and lets the page read the proxy's answers.
4. *The Codex login* is available to other machines only with a key.

Programs other than browsers send no ``Origin`` header, and can send an IP address in ``Host``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from toolsim.core.errors import ApiError
from toolsim.proxy.address import host_of, is_address, is_loopback
from toolsim.proxy.cors import Origins
from toolsim.proxy.options.api_keys import ApiKeys, User, owner_of_token
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.wrong_keys import SECONDS_PER_ATTEMPT
from toolsim.wire.api import Api
from toolsim.wire.apis import APIS

KEY_HEADERS = tuple(dict.fromkeys(name for api in APIS.values() for name in api.key_headers))
"""The headers in which clients send their key. In ``Authorization`` (the first one), the key follows "Bearer"."""

_BEARER = KEY_HEADERS[0]

# The names that programs in a container use for the container's host. They are safe to accept, because no public name
# ends in "internal".
_OF_CONTAINERS = ("host.docker.internal", "host.containers.internal")


Reason = Literal[
    "wrong_key",
    "proxy_key",
    "foreign_host",
    "foreign_page",
    "not_forwarded",
    "remote_codex",
    "loop",
    "websocket",
    "user_limit",
]
"""The reasons for refusals, as they appear in the log and in the metrics."""
REASONS: tuple[Reason, ...] = get_args(Reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(ApiError):
    """The error for a request that is not allowed. It is logged and counted by its ``reason`` (see ``refusals``)."""

    reason: Reason


_WRONG_KEYS = Refusal(
    "Too many requests with incorrect keys from this address.",
    "rate_limit_error",
    "rate_limit_exceeded",
    status=429,
    retry_after=SECONDS_PER_ATTEMPT,
    reason="wrong_key",
)


@dataclass(frozen=True, slots=True)
class Incoming:
    """The facts about a request that determine whether it is allowed.

    The names in ``headers`` must be lower-case, unless the mapping ignores case.
    """

    method: str
    # The host to which the request is addressed.
    host: str
    port: int
    path: str
    headers: Mapping[str, str]
    # The type of the connection on which the request arrived, as described in ``route``.
    is_reverse: bool = False
    is_direct: bool = False
    # Whether the client uses this listener as a forward proxy (mitmproxy's regular and upstream modes).
    is_forward: bool = False
    # The users whose keys the client sent: ``user`` to this server, and ``proxy_user`` to the forward proxy.
    user: User | None = None
    proxy_user: User | None = None
    # Whether the client's address has sent too many wrong keys. If so, only keys that it has used before are accepted.
    is_guessing: bool = False
    # Whether the client is on this machine.
    is_local: bool = True
    # Whether the operator is replaying the request in mitmproxy. A replayed request contains no key.
    is_resent: bool = False
    # The Host that the client used to reach the proxy, as host and port, or "" if it is unknown.
    reached_at: str = ""

    @property
    def any_user(self) -> User | None:
        """The user who sent the request, identified by the key for this server or for the forward proxy."""
        return self.user or self.proxy_user


def own_names(hostname: str, listen_hosts: Iterable[str], origins: Origins) -> frozenset[str]:
    """Return the listener's names other than ``localhost``, in lower case.

    These are the machine's names, its names in containers, the hosts on which the proxy is configured to listen, and
    the hosts of the allowed web origins.
    """
    stem = hostname.lower().removesuffix(".local")
    names = (stem, f"{stem}.local", *_OF_CONTAINERS, *listen_hosts, *origins.hosts)
    return frozenset(name.lower() for name in names if name)


def check_forward(settings: Settings, *, has_key: bool, is_guessing: bool = False) -> Refusal | None:
    """Return the reason for refusing to forward a client's requests to other hosts, or None if they are allowed."""
    if (settings.builtin is not None or settings.models is not None) and settings.upstream is None:
        message = (
            "This listener is not a forward proxy: it serves only its own backend, at /v1. To forward requests for "
            "other hosts, set toolsim_upstream."
        )
        return _forbidden(message, "not_forwarded")
    if settings.api_key and not has_key:
        if is_guessing:
            return _WRONG_KEYS
        message = (
            "toolsim_api_key is set: clients of this proxy must send the key in Proxy-Authorization, as a Bearer "
            "token or as the Basic password."
        )
        code = "proxy_authentication_required"
        return Refusal(message, "invalid_request_error", code, status=407, reason="proxy_key")
    return None


def check_server(request: Incoming, settings: Settings, *, is_through: bool, to_builtin: bool) -> Refusal | None:
    """Return the reason for refusing to serve a request, or None if it is allowed.

    ``is_through`` is true if the request was addressed to another host and is redirected to ``toolsim_upstream``.
    """
    if settings.api_key:
        if request.user is not None or (is_through and request.proxy_user is not None):
            return None
        if request.is_guessing:
            return _WRONG_KEYS
        message = "Incorrect API key provided: it does not match toolsim_api_key."
        return Refusal(message, "invalid_request_error", "invalid_api_key", status=401, reason="wrong_key")
    if to_builtin and settings.builtin == "codex" and not request.is_local:
        message = "Other machines can use the codex backend only if toolsim_api_key is set."
        return _forbidden(message, "remote_codex")
    # The Host header is checked only in reverse mode. In all other modes, it names the request's target, and
    # ``is_listener`` has already checked whether that name certainly belongs to this machine.
    if request.is_reverse and (problem := _foreign_name(request.reached_at, settings)):
        return _forbidden(problem, "foreign_host")
    problem = _foreign_page(request, settings)
    return _forbidden(problem, "foreign_page") if problem else None


def _forbidden(message: str, reason: Reason) -> Refusal:
    return Refusal(message, "invalid_request_error", "forbidden", status=403, reason=reason)


def user_of(headers: Mapping[str, str], api: Api | None, keys: ApiKeys) -> User | None:
    """Return the user whose key is in one of the key headers, or None if none of the headers contains a valid key.

    ``api`` is the API of the request. The header that this API uses for keys is checked first.
    """
    tokens = (
        _bearer_token(headers[name]) if name == _BEARER else headers[name] for name in _order(api) if name in headers
    )
    return next(filter(None, map(keys.user, tokens)), None)


def owner_of(fields: Iterable[tuple[bytes, bytes]], api: Api | None, user: User | None) -> str:
    """Return the owner of a request with these header fields.

    The result is ``user.owner`` or, without a user, a one-way hash of the key. The hash does not depend on the header
    or scheme that was used to send the key. ``api`` has the same meaning as in ``user_of``.
    """
    if user is not None:
        return user.owner
    sent: dict[str, list[str]] = {}
    for field, value in fields:
        if (name := field.decode("utf-8", "surrogateescape").lower()) in KEY_HEADERS:
            sent.setdefault(name, []).append(value.decode("utf-8", "surrogateescape"))
    tokens = (_token(name, value) for name in _order(api) for value in sent.get(name, ()))
    return owner_of_token(next(filter(None, tokens), ""))


def _order(api: Api | None) -> tuple[str, ...]:
    return KEY_HEADERS if api is None else tuple(dict.fromkeys((api.own_key_header, *KEY_HEADERS)))


def _token(name: str, value: str) -> str:
    """Return the token in a header value, without the authentication scheme."""
    scheme, *rest = value.split(None, 1)[:2] or ("",)
    if scheme.lower() == "bearer" or (rest and name == _BEARER):
        return "".join(rest).strip()
    return value.strip()


def proxy_user_of(header: str, keys: ApiKeys) -> User | None:
    """Return the user whose key is in a ``Proxy-Authorization`` header, or None if it contains no valid key.

    The key may be a Bearer token, or a Basic password with any user name.
    """
    scheme, _, token = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return keys.user(_bearer_token(header))
    try:
        sent = base64.b64decode(token.strip(), validate=True).decode("utf-8", "surrogateescape")
    except (ValueError, binascii.Error):
        return None
    return keys.user(sent.partition(":")[2])


def _bearer_token(header: str) -> str:
    scheme, _, token = header.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _foreign_name(reached_at: str, settings: Settings) -> str:
    """Return the reason to reject the Host that a client used to reach the proxy, or "" if the Host is allowed."""
    host = host_of(reached_at).lower().rstrip(".")
    # A request without a Host header is allowed. It cannot be from a browser, since browsers always send the header.
    if not reached_at or is_address(host) or is_loopback(host) or host in settings.names or settings.origins.are_all:
        return ""
    return (
        f"This listener does not accept the host name {host[:255]!r}: use the listener's IP address, list "
        f"http://{host[:255]} in toolsim_cors_origins, or set toolsim_api_key."
    )


def _foreign_page(request: Incoming, settings: Settings) -> str:
    """Return the reason to reject the web page that sent a request, or "" for an allowed page or no page."""
    origin = request.headers.get("origin")
    if not origin or settings.origins.allow(origin):
        return ""
    # A page that this listener itself served is allowed. It belongs to the backend's own web interface.
    served_from = request.reached_at.lower()
    if served_from and origin.lower() in (f"http://{served_from}", f"https://{served_from}"):
        return ""
    return f"The origin {origin[:255]} is not listed in toolsim_cors_origins."
