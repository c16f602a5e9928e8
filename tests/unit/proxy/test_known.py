from __future__ import annotations

import pytest
from toolsimlib.plan import HeldCatalogue
from toolsimlib.proxy import known
from toolsimlib.proxy.known import HeldCatalogues, KnownBackends, Root


def test_a_backend_is_known_by_its_address_and_path() -> None:
    """Requests of either API and version path go to one backend; another path or port means another one."""
    backends = KnownBackends()
    one = backends.at("http", "h", 1, "/v1")
    assert one.root == Root("http", "h", 1, "")
    assert backends.at("http", "h", 1) is one
    assert backends.at("http", "h", 2, "/v1") is not one
    assert backends.at("http", "h", 1, "/gateway/v1").root.path == "/gateway"


def test_addresses_of_pages() -> None:
    """A page is a sibling of /v1; an IPv6 address is in brackets."""
    assert Root("https", "h", 443, "/gateway").url("/props") == "https://h:443/gateway/props"
    assert Root("http", "::1", 80).url("/props") == "http://[::1]:80/props"


def test_a_backend_that_is_gone_is_forgotten() -> None:
    """Everything known of it is dropped; a backend that has replaced it meanwhile stays."""
    backends = KnownBackends()
    old = backends.at("http", "h", 1)
    old.engine = "vllm"
    old.refuses("m", "tools")
    backends.forget(old)
    new = backends.at("http", "h", 1)
    assert (new.engine, new.refused) == (None, set())
    backends.forget(old)
    assert backends.at("http", "h", 1) is new


def test_memory_is_bounded() -> None:
    """Clients choose addresses and models: the oldest backend is dropped, and refusals per backend are bounded."""
    backends = KnownBackends()
    first = backends.at("http", "h", 0)
    for port in range(1, known._MAX_BACKENDS + 1):
        backends.at("http", "h", port)
    assert backends.at("http", "h", 0) is not first
    for number in range(known._MAX_REFUSED * 2):
        first.refuses(f"m{number}", "tools")
        assert len(first.refused) <= known._MAX_REFUSED


def test_catalogues_that_a_backend_holds() -> None:
    """It is found by the answer that a request continues, and only at the backend that gave that answer."""
    backends = KnownBackends()
    one, other = backends.at("http", "h", 1), backends.at("http", "h", 2)
    one.held.note(one.root, "r1", HeldCatalogue("digest"))
    body = b'{"input":"x", "previous_response_id" : "r1"}'
    assert one.held.before(one.root, body) == {"r1": HeldCatalogue("digest", "r1")}
    assert other.held.before(other.root, body) == {}
    assert one.held.before(one.root, b'{"previous_response_id":"r2","user":"r1"}') == {}
    assert one.held.before(one.root, b'{"previous_response_id":5}') == {}


def test_held_catalogues_are_forgotten() -> None:
    """All answers of the same chain are dropped with it; other chains, and other backends, are not affected."""
    backends = KnownBackends()
    one, other = backends.at("http", "h", 1), backends.at("http", "h", 2)
    one.held.note(one.root, "r1", HeldCatalogue("digest"))
    one.held.note(one.root, "r2", HeldCatalogue("digest", "r1"))
    one.held.note(one.root, "r3", HeldCatalogue("digest"))
    other.held.note(other.root, "r1", HeldCatalogue("digest"))
    one.held.forget(one.root, "r2")
    one.held.forget(one.root, "unknown")
    body = b"".join(b'"previous_response_id":"r%d"' % number for number in range(5))
    assert one.held.before(one.root, body) == {"r3": HeldCatalogue("digest", "r3")}
    assert other.held.before(other.root, body) == {"r1": HeldCatalogue("digest", "r1")}


def test_held_catalogues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue that has gone unused for longest is dropped first; an overlong id is not stored."""
    monkeypatch.setattr(known, "_MAX_HELD", 3)
    held, root = HeldCatalogues(), Root("http", "h", 1)
    for id in "abc":
        held.note(root, id, HeldCatalogue("digest"))
    assert held.before(root, b'{"previous_response_id":"a"}')
    held.note(root, "d", HeldCatalogue("digest"))
    left = [id for id in "abcd" if held.before(root, b'{"previous_response_id":"%s"}' % id.encode())]
    assert left == ["a", "c", "d"]
    held.note(root, "x" * 300, HeldCatalogue("digest"))
    assert len(held._held) == 3
