"""The addresses of stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from toolsimlib.store.opening import Address, open_store, read_address
from toolsimlib.store.record import Bounds
from toolsimlib.store.sqlite import SqliteStore


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        ("memory", Address("memory")),
        ("sqlite:a/b", Address("sqlite", "a/b")),
        ("sqlite:/a/b", Address("sqlite", "/a/b")),
        ("sqlite:///a/b", Address("sqlite", "/a/b")),
        ("sqlite:~/b", Address("sqlite", str(Path.home() / "b"))),
        ("redis://h:1/2", Address("redis", "redis://h:1/2")),
        ("rediss://h", Address("redis", "rediss://h")),
    ],
)
def test_addresses(text: str, address: Address | None) -> None:
    """Each form, also as a URL."""
    assert read_address(text) == address


@pytest.mark.parametrize(
    "text", ["yes", "memory:", "sqlite", "sqlite:", "sqlite://", ":", ":x", "postgres://x", "redis:", "redis://"]
)
def test_what_is_none(text: str) -> None:
    """Anything else is refused, with what was expected."""
    with pytest.raises(ValueError, match="expected memory, sqlite:PATH"):
        read_address(text)


async def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    """A store is created without touching its location."""
    store = open_store(Address("sqlite", str(tmp_path / "store")), Bounds())
    assert isinstance(store, SqliteStore)
    assert isinstance(open_store(Address("memory"), Bounds()), SqliteStore)
    assert list(tmp_path.iterdir()) == []
    await store.close()
