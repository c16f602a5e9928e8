from __future__ import annotations

import pytest
from toolsimlib.plan import HeldCatalogue
from toolsimlib.proxy import known
from toolsimlib.proxy.known import HeldCatalogues, KnownBackends, Root


def test_a_backend_is_known_by_its_address_and_path() -> None:
    """Requests of either API and version path are for one backend; another path or port is another one."""
    backends = KnownBackends()
    one = backends.at("http", "h", 1, "/v1")
    assert one.root == Root("http", "h", 1, "")
    assert backends.at("http", "h", 1) is one
    assert backends.at("http", "h", 2, "/v1") is not one
    assert backends.at("http", "h", 1, "/gateway/v1").root.path == "/gateway"


def test_addresses_of_pages() -> None:
    """A page stands beside /v1; an IPv6 address has its brackets."""
    assert Root("https", "h", 443, "/gateway").url("/props") == "https://h:443/gateway/props"
    assert Root("http", "::1", 80).url("/props") == "http://[::1]:80/props"


def test_a_backend_that_is_gone_is_forgotten() -> None:
    """With all that was known of it; one that has taken its place since stays."""
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
    """Clients choose addresses and models: the oldest backend goes, and no backend remembers models without end."""
    backends = KnownBackends()
    first = backends.at("http", "h", 0)
    for port in range(1, known._MAX_BACKENDS + 1):
        backends.at("http", "h", port)
    assert backends.at("http", "h", 0) is not first
    for number in range(known._MAX_REFUSED * 2):
        first.refuses(f"m{number}", "tools")
        assert len(first.refused) <= known._MAX_REFUSED


def test_what_a_backend_was_told() -> None:
    """Found by the answer that a request goes on from, at the backend that gave it; known of all backends together."""
    backends = KnownBackends()
    one, other = backends.at("http", "h", 1), backends.at("http", "h", 2)
    one.held.note(one.root, "r1", HeldCatalogue("digest"))
    body = b'{"input":"x", "previous_response_id" : "r1"}'
    assert one.held.before(one.root, body) == {"r1": HeldCatalogue("digest", "r1")}
    assert other.held.before(other.root, body) == {}
    assert one.held.before(one.root, b'{"previous_response_id":"r2","user":"r1"}') == {}
    assert one.held.before(one.root, b'{"previous_response_id":5}') == {}


def test_what_was_told_is_forgotten() -> None:
    """With an answer goes all that was told with the same one, and nothing else, wherever it was told that."""
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


def test_what_was_told_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not gone on from for longest goes first; an id beyond all measure is not remembered."""
    monkeypatch.setattr(known, "_MAX_HELD", 3)
    told, root = HeldCatalogues(), Root("http", "h", 1)
    for id in "abc":
        told.note(root, id, HeldCatalogue("digest"))
    assert told.before(root, b'{"previous_response_id":"a"}')
    told.note(root, "d", HeldCatalogue("digest"))
    left = [id for id in "abcd" if told.before(root, b'{"previous_response_id":"%s"}' % id.encode())]
    assert left == ["a", "c", "d"]
    told.note(root, "x" * 300, HeldCatalogue("digest"))
    assert len(told._held) == 3
