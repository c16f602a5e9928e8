"""Presets: values of several options in one word."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mitmproxy.addonmanager import Loader
from mitmproxy.exceptions import OptionsError
from mitmproxy.options import Options
from toolsimlib.plan import Policy
from toolsimlib.proxy.options.option import PREFIX, PRESETS
from toolsimlib.proxy.options.settings import parse
from toolsimlib.proxy.options.table import OPTIONS, register


def policy(*specs: str, **flags: str) -> Policy:
    options = Options()
    register(Loader(SimpleNamespace(options=options)), flags)
    options.set(*specs)
    return parse(options).policy


def test_strict_tags_is_the_narrow_contract() -> None:
    """Tags only, records with ids, JSON schemas, nothing repaired; everything else stays."""
    strict, loose = policy("toolsim_preset=strict-tags"), policy()
    assert (strict.untagged, strict.history, strict.manifest, strict.repair) == ("off", "record", "schemas", "off")
    changed = {name for name in Policy.__dataclass_fields__ if getattr(strict, name) != getattr(loose, name)}
    assert changed == {"untagged", "history", "manifest", "repair"}


def test_a_value_set_by_hand_wins() -> None:
    """Wherever it stands, also one that a flag of the environment has set."""
    for specs in (("toolsim_manifest=hermes", "toolsim_preset=strict-tags"), ("toolsim_preset=strict-tags",)):
        chosen = policy(*specs, **({} if len(specs) > 1 else {"PROXY_TOOL_BLOCK_MAX": "2"}))
        assert chosen.manifest == ("hermes" if len(specs) > 1 else "schemas")
        assert chosen.repair == "off"
        assert chosen.tool_block_max == (0 if len(specs) > 1 else 2)


def test_its_values_are_values_of_their_options() -> None:
    """Each preset names options that exist, with values that they have."""
    table = {option.name: option for option in OPTIONS}
    for values in PRESETS.values():
        assert all(value in table[name].choices for name, value in values.items())


def test_an_unknown_word_stops_the_start() -> None:
    """As with every option."""
    with pytest.raises(OptionsError, match=f"{PREFIX}preset"):
        policy("toolsim_preset=strict")
