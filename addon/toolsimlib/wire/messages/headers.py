"""The Messages API's headers, and what becomes of them between a client and a backend.

1. A client sends its key as ``x-api-key`` or, like any other, as a Bearer token. Servers of the other APIs know the
   second form alone, and so do some of this one (vLLM). Anthropic's own server knows an API key in the first and a
   login in the second form, and refuses a request that has both.
2. A backend of this API demands the version of the API, which only its own clients name.
3. What ``anthropic-beta`` asks for is dropped for a backend of another API, and noted: toolsim does by itself what
   clients rely on (deferred tools, system messages between others), and the rest steers Anthropic's server.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolsimlib.wire.api import HeaderChange

_KEY, _VERSION, _BETAS = "x-api-key", "anthropic-version", "anthropic-beta"
_OWN = (_KEY, _VERSION, _BETAS, "anthropic-dangerous-direct-browser-access")
_CURRENT = "2023-06-01"
_ANTHROPICS, _LOGIN = "sk-ant-", "sk-ant-oat"
# Names of betas are short, and a client may send anything.
_MAX_BETAS, _MAX_NAME = 20, 60


def for_others(headers: Mapping[str, str]) -> HeaderChange:
    """Return what changes in a client's headers for a backend of another API (rules 1 and 3)."""
    key = headers.get(_KEY)
    given = {"authorization": f"Bearer {key}"} if key and "authorization" not in headers else {}
    betas = [name for beta in headers.get(_BETAS, "").split(",") if (name := beta.strip())]
    dropped = tuple(f"{_BETAS}:{name[:_MAX_NAME]}" for name in betas[:_MAX_BETAS])
    return HeaderChange(given, _OWN, dropped)


def for_own(headers: Mapping[str, str]) -> HeaderChange:
    """Return what changes in any client's headers for a backend of this API (rules 1 and 2)."""
    given = {} if _VERSION in headers else {_VERSION: _CURRENT}
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() != "bearer" or _KEY in headers or token.startswith(_LOGIN):
        return HeaderChange(given)
    without = ("authorization",) if token.startswith(_ANTHROPICS) else ()
    return HeaderChange({**given, _KEY: token.strip()}, without)
