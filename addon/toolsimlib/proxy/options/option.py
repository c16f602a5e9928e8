"""What an option is, and how the environment sets one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolsimlib.plan import OUTPUT_MODES

PREFIX = "toolsim_"

Value = str | int | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """One option, of the type of its ``default``; a tuple is a sequence of words, which commas may separate too.

    ``env``: the predecessor's environment variable, which gives another default. ``minimum``: the smallest number.
    """

    name: str
    default: Value
    help: str
    choices: tuple[str, ...] = ()
    env: str = ""
    minimum: int = 0

    @property
    def full_name(self) -> str:
        """The name as mitmproxy knows it."""
        return PREFIX + self.name

    @property
    def typespec(self) -> Any:
        """The type as mitmproxy's option manager wants it."""
        return Sequence[str] if isinstance(self.default, tuple) else type(self.default)


def from_environment(option: Option, word: str) -> Value:
    """Return the value that the word of an environment variable stands for. Raises ValueError, in words for people."""
    word = word.strip("\r\n") if option.name == "tool_block_delimiter" else word.strip()
    if isinstance(option.default, bool):
        return _boolean(word)
    if isinstance(option.default, int):
        number = int(word) if re.fullmatch(r"[+-]?\d{1,12}", word) else None
        if number is None or number < option.minimum:
            raise ValueError(f"got {word!r}, expected a whole number, {option.minimum} or more")
        return number
    if not option.choices:
        return word
    word = word.lower()
    if option.name.endswith("output_mode"):
        word = OUTPUT_MODES.get(word, word)
    if word not in option.choices and {"on", "off"} <= set(option.choices):
        word = "on" if _boolean(word) else "off"
    if word not in option.choices:
        raise ValueError(f"got {word!r}, expected one of {', '.join(option.choices)}")
    return word


def _boolean(word: str) -> bool:
    match word.lower():
        case "1" | "true" | "yes" | "on" | "y" | "t" | "enabled":
            return True
        case "0" | "false" | "no" | "off" | "n" | "f" | "disabled":
            return False
    raise ValueError(f"got {word!r}, expected true or false")
