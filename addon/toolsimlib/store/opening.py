"""The address of a store, as the operator writes it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolsimlib.store.record import Bounds, Store
from toolsimlib.store.sqlite import SqliteStore

EXPECTED = "memory, sqlite:PATH or redis://HOST:PORT"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is: ``place`` is the path of a file or the URL of a server."""

    kind: Literal["memory", "sqlite", "redis"]
    place: str = ""


def read_address(text: str) -> Address | None:
    """Parse an address, None for no store. Raises ValueError, with a message for people."""
    if text in ("", "memory"):
        return Address("memory") if text else None
    kind, _, rest = text.partition(":")
    match kind:
        case "sqlite" if place := rest.removeprefix("//"):
            return Address("sqlite", str(Path(place).expanduser()))
        case "redis" | "rediss" | "unix" if rest.startswith("//") and len(rest) > 2:
            if importlib.util.find_spec("redis") is None:
                raise ValueError("a Redis server needs the extra [redis]: pip install '.[redis]'")
            return Address("redis", text)
    raise ValueError(f"got {text!r}, expected {EXPECTED}")


def open_store(address: Address, bounds: Bounds) -> Store:
    """Return the store at an address. Nothing is opened before it is first needed."""
    match address.kind:
        case "sqlite":
            return SqliteStore(Path(address.place), bounds)
        case "redis":
            from toolsimlib.store.redis_server import RedisStore

            return RedisStore(address.place, bounds)
        case "memory":
            return SqliteStore(None, bounds)
