"""The address of a store, as the operator writes it, with its limits: ``sqlite:/srv/answers?days=7&answers=5000``."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolsim.plugins import STORES, StoreKind
from toolsim.stores.record import Bounds, Store

_EXPECTED = "memory, sqlite:PATH or redis://HOST:PORT"
_SMALLEST: Mapping[str, int] = {"answers": 1, "bytes": 1024, "days": 1, "background": 1}
"""The limits that an address may have, with the smallest value of each."""
BACKGROUND = 16
_DAY_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is, and how much it may hold."""

    kind: str
    """One of ``STORES``."""
    place: str = ""
    """The path of a file or the URL of a server."""
    bounds: Bounds = Bounds()
    background: int = BACKGROUND
    """The largest number of answers that are made in the background at one time."""


def read_address(text: str) -> Address | None:
    """Parse an address, None for no store. Raises ValueError, with a message for people."""
    if not text:
        return None
    plain, limits = _split(text)
    default = Bounds()
    bounds = Bounds(
        limits.get("answers", default.records),
        limits.get("bytes", default.bytes),
        limits["days"] * _DAY_SECONDS if "days" in limits else default.seconds,
    )
    background = limits.get("background", BACKGROUND)
    word, _, rest = plain.partition(":")
    match STORES.get(word):
        case StoreKind(place="none") if plain == word:
            place = ""
        case StoreKind(place="path") if path := rest.removeprefix("//"):
            place = str(Path(path).expanduser())
        case StoreKind(place="url") if rest.startswith("//") and len(rest) > 2:
            place = plain
        case _:
            raise ValueError(f"got {text!r}, expected {_EXPECTED}")
    kind = STORES[word]
    if kind.package and importlib.util.find_spec(kind.package) is None:
        raise ValueError(f"{kind.words} needs the extra [{kind.package}]: pip install '.[{kind.package}]'")
    return Address(word, place, bounds, background)


def _split(text: str) -> tuple[str, dict[str, int]]:
    """Return an address without our limits, and the limits. A URL may have parameters of its own, for its server.

    Raises ValueError.
    """
    plain, _, query = text.partition("?")
    limits: dict[str, int] = {}
    others = []
    for pair in query.split("&") if query else ():
        name, _, value = pair.partition("=")
        if name not in _SMALLEST:
            others.append(pair)
        elif not re.fullmatch(r"\d{1,15}", value, re.ASCII) or int(value) < _SMALLEST[name]:
            raise ValueError(f"got {pair!r}, expected a whole number, {_SMALLEST[name]} or more, after {name}=")
        else:
            limits[name] = int(value)
    if others and "://" not in plain:
        raise ValueError(f"got {others[0]!r} after '?', expected limits: {', '.join(_SMALLEST)}")
    return (f"{plain}?{'&'.join(others)}" if others else plain), limits


def open_store(address: Address) -> Store:
    """Return the store at an address. Nothing is opened before it is first needed."""
    store: Store = importlib.import_module(STORES[address.kind].module).open_store(address.place, address.bounds)
    return store
