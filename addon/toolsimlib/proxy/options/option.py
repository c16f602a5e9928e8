"""What an option is, and the presets: one word for the values of several options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "toolsim_"

Value = str | int | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """One option, of the type of its ``default``; a tuple is a sequence of words, which commas may separate too."""

    name: str
    default: Value
    help: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    """The smallest number."""

    @property
    def full_name(self) -> str:
        """The name as mitmproxy knows it."""
        return PREFIX + self.name

    @property
    def typespec(self) -> Any:
        """The type as mitmproxy's option manager wants it."""
        return Sequence[str] if isinstance(self.default, tuple) else type(self.default)


# A value that was set by hand, or by a flag, wins over it.
PRESETS: Mapping[str, Mapping[str, Value]] = {
    "": {},
    # Calls in their tags and nothing else, records with ids, JSON schemas, and nothing repaired.
    "strict-tags": {"untagged": "off", "history": "record", "manifest": "schemas", "repair": "off"},
}


def preset_value(preset: str, option: Option, value: Value) -> Value:
    """Return the value that counts: the preset's, if it has one and ``value`` is the option's own default."""
    return PRESETS[preset].get(option.name, value) if value == option.default else value
