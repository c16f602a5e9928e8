"""CORS headers, which determine which web pages can read responses."""

from __future__ import annotations

from support.each import each
from toolsim.proxy.cors import Origins, add_cors, cors_headers, preflight_headers

ORIGINS: list[tuple[tuple[str, ...], str, bool]] = [
    (("http://localhost:*",), "http://localhost", True),
    (("http://localhost:*",), "http://localhost:80", True),
    (("http://localhost:*",), "http://LOCALHOST:80", True),
    (("http://localhost:*",), "https://localhost:80", False),
    (("http://localhost:*",), "http://localhost:80/", False),
    (("http://localhost:*",), "http://localhost:", False),
    (("http://localhost:*",), "http://localhost.evil", False),
    (("http://localhost:*",), "evil http://localhost", False),
    (("app://obsidian.md",), "app://obsidian.md", True),
    (("app://obsidian.md",), "app://obsidian.md:1", False),
    (("null",), "null", True),
    (("*",), "https://anyone", True),
    ((), "https://anyone", False),
]


@each(("patterns", "origin", "allowed"), ORIGINS)
def test_origins_must_match(patterns: tuple[str, ...], origin: str, allowed: bool) -> None:
    """An origin must match an entry in the list completely. ``:*`` in an entry stands for any port or no port."""
    assert Origins(patterns).allow(origin) is allowed


def test_listed_origin_receives_cors_headers() -> None:
    """Only a request from a listed origin receives CORS headers, which name that origin."""
    origins = Origins(("app://x",))
    assert cors_headers(origins, "app://x")["access-control-allow-origin"] == "app://x"
    assert cors_headers(origins, "app://y") == cors_headers(origins, None) == {}


def test_preflight_is_granted() -> None:
    """The response to a preflight from a listed origin allows the headers that the preflight requests, if their list is
    well-formed.
    """
    origins = Origins(("app://x",))
    asked = {"origin": "app://x", "access-control-request-method": "POST"}
    assert preflight_headers(origins, {"origin": "app://x"}) is None
    assert preflight_headers(origins, asked | {"origin": "app://y"}) is None
    for headers, expected in (("a, x-b", "a, x-b"), ("a\r\nx: y", "authorization, content-type")):
        answer = preflight_headers(origins, asked | {"access-control-request-headers": headers})
        assert answer is not None
        assert answer["access-control-allow-headers"] == expected
        assert "access-control-allow-private-network" not in answer
    private = preflight_headers(origins, asked | {"access-control-request-private-network": "true"})
    assert private is not None
    assert private["access-control-allow-private-network"] == "true"


def test_cors_headers_are_added_to_an_answer() -> None:
    """``Origin`` is added to the backend's Vary header, and the backend's own CORS headers take precedence."""
    allowed = cors_headers(Origins(("*",)), "app://x")
    headers = {"vary": "Accept"}
    add_cors(headers, allowed)
    assert (headers["access-control-allow-origin"], headers["vary"]) == ("app://x", "Accept, Origin")
    own = {"access-control-allow-origin": "*"}
    add_cors(own, allowed)
    assert own == {"access-control-allow-origin": "*"}
