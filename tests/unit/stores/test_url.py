"""Tests for parsing the addresses of stores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest
from support.each import each
from toolsim.plugins import STORES, StoreKind
from toolsim.stores.record import StoreLimits
from toolsim.stores.redis_server import RedisStore
from toolsim.stores.sqlite import SqliteStore
from toolsim.stores.url import StoreUrl, open_store, parse_store_url


@each(
    ("text", "address"),
    [
        ("", None),
        ("memory", StoreUrl("memory")),
        ("sqlite:a/b", StoreUrl("sqlite", "a/b")),
        ("sqlite:/a/b", StoreUrl("sqlite", "/a/b")),
        ("sqlite:///a/b", StoreUrl("sqlite", "/a/b")),
        ("sqlite:~/b", StoreUrl("sqlite", str(Path.home() / "b"))),
        ("redis://h:1/2", StoreUrl("redis", "redis://h:1/2")),
        ("rediss://h", StoreUrl("rediss", "rediss://h")),
        ("memory?answers=3&background=2", StoreUrl("memory", "", StoreLimits(records=3), 2)),
        ("sqlite:/a?bytes=2000&days=2", StoreUrl("sqlite", "/a", StoreLimits(bytes=2000, seconds=172_800.0))),
        ("redis://h?db=2&answers=3", StoreUrl("redis", "redis://h?db=2", StoreLimits(records=3))),
        ("redis://h?required=1", StoreUrl("redis", "redis://h", is_required=True)),
        ("redis://h?required=0", StoreUrl("redis", "redis://h")),
    ],
)
def test_addresses_are_parsed(text: str, address: StoreUrl | None) -> None:
    """The address of a store is parsed in each supported format, with and without limits."""
    assert parse_store_url(text) == address


@each("text", ["yes", "memory:", "sqlite", "sqlite:", "sqlite://", ":", ":x", "postgres://x", "redis:", "redis://"])
def test_other_addresses_are_rejected(text: str) -> None:
    """An address in any other format is rejected with an error that lists the expected formats."""
    with pytest.raises(ValueError, match="expected memory, sqlite:PATH"):
        parse_store_url(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("memory?answers=0", "got 'answers=0', expected a whole number, 1 or more, after answers="),
        ("memory?bytes=1023", "expected a whole number, 1024 or more"),
        ("memory?required=yes", "got 'required=yes', expected required=0 or required=1"),
        ("memory?days=x", "got 'days=x', expected a whole number"),
        ("memory?", None),
        (
            "memory?day=3",
            "got 'day=3' after '?', expected only these limits: answers, bytes, days, background, required",
        ),
        ("sqlite:/a?x", "got 'x' after '?'"),
        ("?days=3", "expected memory, sqlite:PATH"),
    ],
)
def test_invalid_limits_are_refused(text: str, reason: str | None) -> None:
    """The error for an invalid limit quotes the limit and states the expected values."""
    if reason is None:
        assert parse_store_url(text) == StoreUrl("memory")
        return
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_store_url(text)


async def test_new_kind_of_store_needs_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new kind of store needs only a new row in the ``STORES`` table. Its address accepts the usual limits, and is
    rejected if a required package is missing.
    """
    (tmp_path / "own_store.py").write_text("def open_store(place, bounds): return place, bounds.records")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(STORES, "own", StoreKind("own_store", "url"))
    monkeypatch.setitem(STORES, "other", StoreKind("own_store", "url", "Such a store", "no_such_package"))
    address = parse_store_url("own://h?answers=3")
    assert address is not None
    assert cast(object, open_store(address)) == ("own://h", 3)
    with pytest.raises(ValueError, match=r"Such a store requires the extra \[no_such_package\]"):
        parse_store_url("other://h")


async def test_store_is_opened_lazily(tmp_path: Path) -> None:
    """Creating a store object does not create files or connections."""
    store = open_store(StoreUrl("sqlite", str(tmp_path / "store")))
    assert isinstance(store, SqliteStore)
    assert isinstance(open_store(StoreUrl("memory")), SqliteStore)
    assert isinstance(open_store(StoreUrl("redis", "redis://h")), RedisStore)
    assert list(tmp_path.iterdir()) == []
    await store.close()
