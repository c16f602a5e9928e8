"""One word for the values of several options. A value that was set by hand, or by a flag, wins over it."""

from __future__ import annotations

from collections.abc import Mapping

from toolsimlib.proxy.options.option import Option, Value

PRESETS: Mapping[str, Mapping[str, Value]] = {
    "": {},
    # Calls in their tags and nothing else, records with ids, JSON schemas, and nothing repaired.
    "strict-tags": {"untagged": "off", "history": "record", "manifest": "schemas", "repair": "off"},
}


def preset_value(preset: str, option: Option, value: Value) -> Value:
    """Return the value that counts: the preset's, if it has one and ``value`` is the option's own default."""
    return PRESETS[preset].get(option.name, value) if value == option.default else value
