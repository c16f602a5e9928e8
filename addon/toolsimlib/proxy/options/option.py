"""What an option is."""

from __future__ import annotations

from collections.abc import Sequence
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
