"""Access control based on host names, web page origins and keys, tested without flows."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from mitmproxy.http import Headers
from support.each import each
from toolsim.core.policy import ApiName
from toolsim.proxy.access import Incoming, check_forward, check_server, own_names, owner_of, proxy_user_of, user_of
from toolsim.proxy.address import Upstream
from toolsim.proxy.cors import Origins
from toolsim.proxy.head import by_name
from toolsim.proxy.options.api_keys import ApiKeys, User
from toolsim.proxy.options.models_file import ModelsFile
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.options.table import OPTIONS
from toolsim.wire.apis import APIS

ORIGINS = Origins(("app://obsidian.md", "http://localhost:*", "https://Chat.example"))
SETTINGS = Settings(origins=ORIGINS, names=own_names("Box.local", ["0.0.0.0", "llm.lan", ""], ORIGINS))
KEYS = ApiKeys.single("key")
USER = KEYS.user("key")
ASKED = Incoming("GET", "backend", 80, "/", {}, is_reverse=True)

KNOWN = ["", "127.0.0.1", "10.0.0.7:9", "[::1]", "[fe80::1%25eth0]:8080", "::1", "127.1", "2130706433:8080"]
KNOWN += ["localhost", "LOCALHOST:8080", "localhost.", "a.localhost:1", "box", "BOX:8080", "box.local", "llm.lan:8080"]
KNOWN += ["chat.example", "CHAT.example:8080", "host.docker.internal:8080", "host.containers.internal"]
FOREIGN = ["evil.test", "evil.test:8080", "localhost.evil.test", "127.0.0.1.evil.test", "obsidian.md", "box.evil.test"]
FOREIGN += [
    "x",
    "127.0.0.1, evil.test",
    "evil.test, 127.0.0.1",
    "[evil.test]",
    "a:b:c",
    " ",
    "chat.example.evil",
]


def refusal(request: Incoming, settings: Settings = SETTINGS, *, is_through: bool = False) -> int | None:
    error = check_server(request, settings, is_through=is_through, to_builtin=False)
    return error and error.status


@each("name", KNOWN)
def test_local_host_names_are_accepted(name: str) -> None:
    """A request's host can be an IP address, localhost, one of this machine's names, or the host of a listed page, with
    or without a port.
    """
    assert refusal(replace(ASKED, reached_at=name)) is None


@each("name", FOREIGN)
def test_foreign_host_names_are_refused(name: str) -> None:
    """A host name that is neither local nor listed could belong to an attacker and is refused, as is a
    malformed host.
    """
    assert refusal(replace(ASKED, reached_at=name)) == 403


def test_wildcard_origin_accepts_every_name() -> None:
    """If the list of origins contains ``*``, every host name is accepted."""
    settings = Settings(origins=Origins(("*",)))
    assert refusal(replace(ASKED, reached_at="evil.test", headers={"origin": "http://evil.test"}), settings) is None


PAGES: list[tuple[str, str, int | None]] = [
    ("app://obsidian.md", "localhost:8080", None),
    ("http://localhost:3000", "127.0.0.1:8080", None),
    ("https://chat.example", "", None),
    ("http://10.0.0.7:8080", "10.0.0.7:8080", None),
    ("https://LLM.lan", "llm.lan", None),
    ("http://10.0.0.7:8081", "10.0.0.7:8080", 403),
    ("http://10.0.0.7:8080", "10.0.0.8:8080", 403),
    ("http://evil.test:8080", "evil.test:8080", 403),
    ("http://", "", 403),
    ("null", "localhost", 403),
    ("https://evil.test", "localhost", 403),
]


@each(("origin", "reached_at", "status"), PAGES)
def test_pages_are_accepted_by_origin(origin: str, reached_at: str, status: int | None) -> None:
    """A web page is accepted if its origin is listed or if it was served by this listener."""
    assert refusal(replace(ASKED, reached_at=reached_at, headers={"origin": origin})) == status


def test_local_pages_are_accepted_by_default() -> None:
    """By default, web pages from this machine are accepted on any port, as are Obsidian's pages."""
    settings = Settings(origins=Origins(next(option.default for option in OPTIONS if option.name == "cors_origins")))
    for origin, status in (
        ("http://localhost:3000", None),
        ("http://localhost", None),
        ("http://127.0.0.1:8080", None),
        ("app://obsidian.md", None),
        ("https://example.com", 403),
        ("http://localhost.example.com", 403),
        ("null", 403),
    ):
        assert refusal(replace(ASKED, reached_at="localhost", headers={"origin": origin}), settings) == status, origin


@each("origin", ["http://evil.test", "http://localhost:3000", "app://obsidian.md"])
def test_key_is_sufficient_for_pages(origin: str) -> None:
    """If a key is configured, only the key is checked, regardless of origin and host name."""
    page = replace(ASKED, reached_at="evil.test", headers={"origin": origin})
    settings = replace(SETTINGS, api_key=KEYS)
    assert refusal(page, settings) == 401
    assert refusal(replace(page, user=USER), settings) is None


def test_proxy_key_does_not_open_the_listener() -> None:
    """A key in ``Proxy-Authorization`` does not authorize requests to the listener itself, which need a key in a
    separate header.
    """
    request, settings = replace(ASKED, proxy_user=USER), replace(SETTINGS, api_key=KEYS)
    assert refusal(request, settings) == 401
    assert refusal(request, settings, is_through=True) is None


UPSTREAM = Upstream("http", "up", 80)
FORWARDS: list[tuple[Settings, bool, int | None]] = [
    (Settings(), False, None),
    (Settings(api_key=KEYS), False, 407),
    (Settings(api_key=KEYS), True, None),
    (Settings(builtin="codex"), False, 403),
    (Settings(builtin="local", api_key=KEYS), True, 403),
    (Settings(builtin="scripted", upstream=UPSTREAM), False, None),
    (Settings(builtin="scripted", upstream=UPSTREAM, api_key=KEYS), False, 407),
]


@pytest.mark.parametrize(("settings", "has_key", "status"), FORWARDS)
def test_forwarding_is_limited(settings: Settings, has_key: bool, status: int | None) -> None:
    """With only a built-in backend, no request is forwarded to another host. With an upstream, requests are forwarded,
    but require the key if one is configured.
    """
    error = check_forward(settings, has_key=has_key)
    assert (error and error.status) == status


def test_forwarding_is_limited_with_a_models_file(tmp_path: Path) -> None:
    """With a models file, nothing is forwarded to other hosts unless an upstream is set."""
    file = tmp_path / "models.toml"
    file.write_text('[[models]]\nnames = "m"\nurl = "http://small/v1"\n')
    settings = Settings(models=ModelsFile(file, {}))
    for has_key in (False, True):
        error = check_forward(replace(settings, api_key=KEYS if has_key else None), has_key=has_key)
        assert error is not None
        assert error.status == 403
    assert check_forward(replace(settings, upstream=UPSTREAM), has_key=False) is None


def basic(text: str) -> str:
    return f"Basic {b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    "header", ["Bearer key", basic("anyone:key"), basic(":key"), basic("x:key").lower()[:5] + basic("x:key")[5:]]
)
def test_valid_proxy_key(header: str) -> None:
    """The proxy accepts the key as a Bearer token, or as a password with any user name."""
    assert proxy_user_of(header, KEYS) == USER


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !", "Basic \udce9", basic("key"), basic("key:x"), basic("x:key:y"), "Digest key"]
)
def test_invalid_proxy_key(header: str) -> None:
    """Malformed or wrong proxy credentials are refused without an exception."""
    assert proxy_user_of(header, KEYS) is None


def bearer_user(header: str) -> User | None:
    return user_of({"authorization": header}, None, KEYS)


@pytest.mark.parametrize("header", ["Bearer key", "bearer key", "BEARER   key "])
def test_valid_bearer_key(header: str) -> None:
    """The case of "Bearer" does not matter, and spaces around the key are ignored."""
    assert bearer_user(header) == USER


@pytest.mark.parametrize("header", ["", "key", "Bearer", "Bearer keys", "Bearer KEY", "Basic key", "Bearer k\udce9y"])
def test_invalid_bearer_key(header: str) -> None:
    """A malformed or wrong authorization header is refused without an exception."""
    assert bearer_user(header) is None


_SCHEMES = ["Bearer ", "bearer ", "BEARER ", "bEaReR ", "Bearer  ", "Bearer   ", " Bearer ", "bearer  "]
_NAMES = ["Authorization", "authorization", "AUTHORIZATION"]
_BARE = [
    (name, f"{space}key{end}")
    for name in ("api-key", "X-Api-Key", "x-api-key")
    for space in ("", " ")
    for end in ("", " ")
]
SPELLINGS: list[list[tuple[str, str]]] = [
    *([(name, scheme + "key")] for name in _NAMES for scheme in _SCHEMES),
    *([field] for field in _BARE),
    [("authorization", "Bearer key"), ("authorization", "Bearer key")],
    [("authorization", "Bearer key"), ("x-api-key", "key")],
    [("authorization", ""), ("api-key", "key")],
    [("authorization", "Bearer "), ("api-key", "key")],
    [("x-other", "other"), ("authorization", "Bearer\tkey")],
]


def _owner(
    spelling: list[tuple[str, str]], api: ApiName = "responses", keys: ApiKeys | None = None, user: User | None = None
) -> str:
    fields = [(name.encode(), value.encode()) for name, value in spelling]
    sent = by_name(Headers(fields))
    return owner_of(fields, APIS[api], user_of(sent, APIS[api], keys) or user if keys is not None else user)


@pytest.mark.parametrize("api", list(APIS))
def test_all_spellings_of_a_key_have_one_owner(api: ApiName) -> None:
    assert len(SPELLINGS) >= 40
    assert {_owner(spelling, api) for spelling in SPELLINGS} == {_owner([("authorization", "Bearer key")], api)}


@pytest.mark.parametrize("other", ["Bearer any", "any", "Basic YTpi", "", "bearer  a", "Bearer \xa0"])
def test_owner_is_the_accepted_key(other: str) -> None:
    both = [("authorization", other), ("x-api-key", "key")]
    assert _owner(both, keys=KEYS) == _owner([("authorization", "Bearer key")])
    assert _owner([("authorization", other)], user=USER) == _owner([("api-key", "key")])


@pytest.mark.parametrize("value", ["Bearer key\xa0", "Bearer \u2003key"])
def test_accepted_spelling_is_the_key(value: str) -> None:
    assert bearer_user(value) == USER
    assert _owner([("authorization", value)], keys=KEYS) == _owner([("api-key", "key")])


def test_api_specific_header_takes_precedence() -> None:
    both = [("authorization", "Bearer one"), ("x-api-key", "two")]
    assert _owner(both, "messages") == _owner([("x-api-key", "two")])
    assert _owner(both, "responses") == _owner(both, "chat") == _owner([("authorization", "Bearer one")])


def test_owners_are_distinct_and_hide_the_key() -> None:
    values = [[], *([("x-api-key", value)] for value in ("secret", "Secret", "my key", "my other", "a,b", "a,c"))]
    owners = [_owner(value) for value in values]
    assert len(set(owners)) == len(owners)
    assert all(re.fullmatch("[0-9a-f]{32}", owner) for owner in owners)


def test_data_of_earlier_versions_is_reachable() -> None:
    assert _owner([("authorization", "Bearer key")]) == sha256(b"toolsim\0Bearer key\0\0").hexdigest()[:32]
    assert _owner([]) == sha256(b"toolsim\0\0\0").hexdigest()[:32]
