from __future__ import annotations

from itertools import pairwise

from toolsimlib.proxy import known
from toolsimlib.proxy.known import KnownBackends, Root


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


def test_a_backend_that_is_never_asked_is_forgotten() -> None:
    """Everything known of it is dropped; a backend that has replaced it meanwhile stays."""
    backends = KnownBackends()
    old = backends.at("http", "h", 1)
    old.refuses("m", "tools")
    old.doubt()
    new = backends.at("http", "h", 1)
    assert new.refused == set()
    old.doubt()
    assert backends.at("http", "h", 1) is new


def test_a_backend_that_is_gone_is_assumed_to_be_what_it_was() -> None:
    """It is asked more and more rarely, until it has been quiet for long."""
    backends, now, asked = KnownBackends(), 0.0, []
    backend = backends.at("http", "h", 1)
    assert backend.may_be_asked(now)
    backend.is_now("vllm")
    assert not backend.may_be_asked(10_000.0)
    while now < 20_000.0:
        now += 1.0
        backend.doubt()
        if backends.at("http", "h", 1).may_be_asked(now):
            asked.append(now)
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses[:4] == [10.0, 20.0, 40.0, 80.0]
    assert pauses == sorted(pauses)
    assert max(pauses) == known.MAX_REST_SECONDS
    assert backend.engine == "vllm"
    assert backend.may_be_asked(now + 5 * known.MAX_REST_SECONDS)
    assert backend.rest == known.REST_SECONDS


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
