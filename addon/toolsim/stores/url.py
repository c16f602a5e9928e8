"""Parses the URL of a store with its limits, such as ``sqlite:/srv/answers?days=7&answers=5000``."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from toolsim.installation import command_for_extra
from toolsim.plugins import STORES, StoreKind
from toolsim.stores.record import Store, StoreLimits

_EXPECTED = "memory, sqlite:PATH or redis://HOST:PORT"
_SMALLEST: Mapping[str, int] = {"answers": 1, "bytes": 1024, "days": 1, "background": 1, "required": 0}
"""The limits that the URL can specify, with their minimum values."""
BACKGROUND = 16
_DAY_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """The location of a store, and its limits."""

    kind: str
    """The kind of store, as a key of ``STORES``."""
    location: str = ""
    """The path of a file or the URL of a server."""
    bounds: StoreLimits = StoreLimits()
    background: int = BACKGROUND
    """The maximum number of concurrent background answers."""
    is_required: bool = False
    """Whether the proxy reports that it is not ready while the store fails (``required=1``).

    Off by default, because most requests still work without the store, and because a failing store would take all
    proxies that share it out of service.
    """


def parse_store_url(text: str) -> StoreUrl | None:
    """Parse a URL. Return None if it is empty, which means that there is no store.

    Raises ValueError if the URL is invalid, or a package for this type of store is missing.
    """
    if not text:
        return None
    plain, limits = _split(text)
    default = StoreLimits()
    bounds = StoreLimits(
        limits.get("answers", default.records),
        limits.get("bytes", default.bytes),
        limits["days"] * _DAY_SECONDS if "days" in limits else default.seconds,
    )
    background = limits.get("background", BACKGROUND)
    word, _, rest = plain.partition(":")
    match STORES.get(word):
        case StoreKind(location="none") if plain == word:
            place = ""
        case StoreKind(location="path") if path := rest.removeprefix("//"):
            place = str(Path(path).expanduser())
        case StoreKind(location="url") if rest.startswith("//") and len(rest) > 2:
            place = plain
        case _:
            raise ValueError(f"got {text!r}, expected {_EXPECTED}")
    kind = STORES[word]
    if kind.package and importlib.util.find_spec(kind.package) is None:
        raise ValueError(f"{kind.words} requires the extra [{kind.package}]: {command_for_extra(kind.package)}")
    return StoreUrl(word, place, bounds, background, bool(limits.get("required", 0)))


def _split(text: str) -> tuple[str, dict[str, int]]:
    """Split a URL into the server's URL and toolsim's limits.

    Other parameters are for the server and remain in the URL. Raises ValueError if a limit is invalid, or if there are
    other parameters but no server.
    """
    plain, _, query = text.partition("?")
    limits: dict[str, int] = {}
    others = []
    for pair in query.split("&") if query else ():
        name, _, value = pair.partition("=")
        if name not in _SMALLEST:
            others.append(pair)
        elif name == "required" and value not in ("0", "1"):
            raise ValueError(f"got {pair!r}, expected required=0 or required=1")
        elif not re.fullmatch(r"\d{1,15}", value, re.ASCII) or int(value) < _SMALLEST[name]:
            raise ValueError(f"got {pair!r}, expected a whole number, {_SMALLEST[name]} or more, after {name}=")
        else:
            limits[name] = int(value)
    if others and "://" not in plain:
        raise ValueError(f"got {others[0]!r} after '?', expected only these limits: {', '.join(_SMALLEST)}")
    return (f"{plain}?{'&'.join(others)}" if others else plain), limits


def open_store(address: StoreUrl) -> Store:
    """Return the store at a URL. The store opens its file or connection when it is first used."""
    store: Store = _module(address).open_store(address.location, address.bounds)
    return store


def file_problem(address: StoreUrl) -> str:
    """Return why the existing file of a store cannot be used, or "" if it can. A locked file is not a problem, because
    it can be used later.
    """
    problem: str = _module(address).file_problem(Path(address.location))
    return problem


def _module(address: StoreUrl) -> ModuleType:
    """Import the module of a store on demand."""
    return importlib.import_module(STORES[address.kind].module)
