"""Defines secrets by the names of fields and headers, and by patterns for text that looks like a secret."""

from __future__ import annotations

import re
from functools import lru_cache

from toolsim.wire.apis import APIS

KEPT_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "access-control-allow-headers",
        "access-control-allow-methods",
        "access-control-allow-origin",
        "access-control-expose-headers",
        "allow",
        "cache-control",
        "content-encoding",
        "content-type",
        "origin",
        "retry-after",
        "retry-after-ms",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "vary",
        "www-authenticate",
        "x-accel-buffering",
        "x-proxy-output-mode",
        "x-should-retry",
    }
).union(*(api.headers for api in APIS.values()))
"""Headers whose values are recorded, except for text that looks like a secret.

This also applies to headers whose names begin with one of ``KEPT_PREFIXES``.
"""
KEPT_PREFIXES = ("x-toolsim-", "x-ratelimit-")

DROPPED_HEADERS = frozenset(
    {
        "age",
        "alt-svc",
        "connection",
        "date",
        "etag",
        "expires",
        "forwarded",
        "keep-alive",
        "last-modified",
        "nel",
        "report-to",
        "server",
        "server-timing",
        "toolsim-token",
        "traceparent",
        "tracestate",
        "via",
        "x-client-request-id",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-real-ip",
        "x-request-id",
    }
)
"""Headers that are omitted because they describe only a machine, a connection or a time."""
DROPPED_PREFIXES = ("x-stainless-", "cf-", "sec-")

SECRET_NAME = re.compile(
    r"(?:(?:api|access|secret|private|subscription|signing|account|master|encryption|client|auth|functions)_?keys?"
    r"|passwords?|passwd|passphrase|pwd|secrets?|token|(?:access|auth|refresh|session|bearer)_?tokens"
    r"|authorization|credentials?|cookie|bearer)$"
)
"""Matches names of fields, parameters and headers that contain secrets. The names are converted to snake case first."""
# Matches names that indicate a secret only in URL parameters and headers. For example, "key" is too common as a field
# name, but Google uses it as a URL parameter, and many headers end with it.
_SECRET_PARAMETER = re.compile(r"(?:^|_)(?:key|sig|signature|code|sid|auth|session)$")

PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("OpenAI and similar", re.compile(r"\bsk-(?P<secret>[\w-]{8,512})")),
    (
        # Some of these prefixes are also words. If no digit follows, the text is probably a tool's name.
        "other vendors",
        re.compile(r"\b(?:[spr]k|sess|gsk|hf|xai|pplx|nvapi|r8|glpat)[-_](?=[\w-]{0,64}\d)(?P<secret>[\w-]{8,512})"),
    ),
    ("GitHub", re.compile(r"\b(?:gh[pousr]|github_pat)_(?P<secret>\w{8,512})")),
    (
        "vendors of long keys",
        re.compile(
            r"\b(?:npm|pypi|dckr_pat|whsec|do[opr]_v1|shp(?:at|ca|pa|ss)|ntn|lin_api|GOCSPX|xapp|hv[sbr]|SG)[-_.]"
            r"(?=[\w.-]{0,64}\d)(?P<secret>[\w.-]{20,1024})"
        ),
    ),
    ("hexadecimal keys", re.compile(r"\b(?:dapi|SK|AC)(?P<secret>[0-9a-f]{32})\b")),
    ("Telegram", re.compile(r"\b\d{8,10}:(?P<secret>AA[\w-]{32,34})\b")),
    ("web hooks", re.compile(r"(?i:hooks\.slack\.com/\w+|/api/webhooks)/(?P<secret>[\w/-]{8,512})")),
    ("Slack", re.compile(r"\bxox[a-z]-(?P<secret>[\w-]{8,512})")),
    ("Google", re.compile(r"\b(?:AIza|ya29\.)(?P<secret>[\w-]{8,1024})")),
    ("AWS", re.compile(r"\b(?:AKIA|ASIA)(?P<secret>[A-Z0-9]{12,128})\b")),
    (
        "JSON web token",
        re.compile(r"(?<![\w-])eyJ(?P<secret>[\w-]{6,4096}\.[\w-]{4,8192}(?:\.[\w-]{0,4096})?)"),
    ),
    ("bearer", re.compile(r"\b(?i:bearer)(?:[ \t+]|%20){1,4}(?P<secret>[\w.~+/=-]{8,8192})")),
    ("basic", re.compile(r"\b(?i:basic)[ \t]{1,4}(?=[\w+/]{0,64}[\d=+/])(?P<secret>[\w+/=-]{8,8192})")),
    (
        "authorization of any scheme",
        re.compile(
            r"\b(?i:authorization)\\*[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\*[\"']?(?:[A-Za-z][\w-]{0,31}[ \t]{1,4})?"
            r"(?P<secret>[^\s\"'`\\<>{}\[\](),]{4,8192}(?:,[ \t]{0,4}\w{1,32}=[^\s\"'`\\<>,]{1,1024}){0,16})"
        ),
    ),
    (
        "cookies",
        re.compile(r"\b(?i:cookie):[ \t]{0,4}(?P<secret>[^\s;\"'\\]{2,4096}(?:;[ \t]{0,4}[^\s;\"'\\]{1,4096}){0,64})"),
    ),
    (
        "user of curl",
        re.compile(r"(?<!\S)(?:-u|--user)[ =]\\*[\"']?(?P<secret>[^\s\"':\\]{1,64}:[^\s\"'\\]{4,256})"),
    ),
    (  # The "@" after the group is the last one in the URL, because the password can contain others.
        "user and password of a URL",
        re.compile(r"\b(?i:[a-z][a-z0-9+.-]{1,20})://(?P<secret>[^\s/\"'<>\\]{1,256})@"),
    ),
    (
        "parameter of a URL",
        re.compile(
            r"[?&#](?i:(?:[\w.-]{0,64}[_.-])?(?:key|sig|signature|code|sid|auth|session))="
            r"(?P<secret>[^\s&#\"'<>\\]{8,4096})"
        ),
    ),
    (
        "private key",
        re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?P<secret>(?:[^-]|-(?!----))++)"),
    ),
)
"""Patterns for text that looks like a secret. Only the group ``secret`` is hidden."""


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a field, parameter or header with this name contains a secret."""
    return SECRET_NAME.search(_snake(name)) is not None


@lru_cache(maxsize=4096)
def is_secret_parameter(name: str) -> bool:
    """Return whether a URL parameter or header with this name, for example ``key``, contains a secret."""
    return is_secret_name(name) or _SECRET_PARAMETER.search(_snake(name)) is not None


def _snake(name: str) -> str:
    lower = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name[-128:]).lower()
    return re.sub(r"[^a-z0-9]+", "_", lower).strip("_")
