"""The options of the store."""

from __future__ import annotations

import pytest
from mitmproxy import options
from mitmproxy.exceptions import OptionsError
from toolsimlib.proxy.options import settings
from toolsimlib.proxy.options.memory import MEMORY_OPTIONS
from toolsimlib.proxy.options.table import OPTIONS, register
from toolsimlib.store.opening import Address
from toolsimlib.store.record import Bounds


def parsed(**values: str | int) -> settings.Settings:
    made = options.Options()
    register(made, {})
    made.update(**{f"toolsim_{name}": value for name, value in values.items()})  # type: ignore[no-untyped-call]
    return settings.parse(made)


def test_they_are_in_the_table() -> None:
    """One table has all options."""
    assert set(MEMORY_OPTIONS) <= set(OPTIONS)


def test_nothing_is_stored_by_default() -> None:
    """The default is no store, with the default bounds."""
    made = parsed()
    assert (made.store, made.store_bounds) == (None, Bounds())


def test_values() -> None:
    """Each option has its effect; days become seconds."""
    made = parsed(store="sqlite:/x", store_max_answers=3, store_max_bytes=2000, store_max_days=2)
    assert (made.store, made.store_bounds) == (Address("sqlite", "/x"), Bounds(3, 2000, 172_800.0))


def test_answers_in_the_background() -> None:
    """Their bounds are the defaults of the background room, unless they are set."""
    assert parsed().background == settings.Background()
    made = parsed(background_max=2, background_event_bytes=3000)
    assert made.background == settings.Background(2, 3000)


def test_bad_values() -> None:
    """A store of an unknown kind stops the start, and so does a background limit of no answers."""
    with pytest.raises(OptionsError, match="toolsim_background_max: got 0, expected 1 or more"):
        parsed(background_max=0)
    with pytest.raises(OptionsError, match="toolsim_store: got 'yes', expected memory"):
        parsed(store="yes")
