"""An option, with one method for each source from which its value can be read.

The command line contains strings, config.yaml contains typed values, and mitmproxy's option manager contains values of
the option's own type. The three methods raise ValueError with the same messages. Each message contains the actual and
the expected value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolsim.command_line import nearest

PREFIX = "toolsim_"

Value = str | int | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """An option. Its values have the type of its ``default``.

    If the default is a tuple, a value is a list of words. The words may be separate arguments, or separated by commas.
    """

    name: str
    default: Value
    help: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    """The minimum value of a numeric option."""

    @property
    def full_name(self) -> str:
        """The option's name in mitmproxy, including the prefix."""
        return PREFIX + self.name

    @property
    def typespec(self) -> Any:
        """The option's type, in the format that mitmproxy's option manager expects."""
        return Sequence[str] if isinstance(self.default, tuple) else type(self.default)

    def from_texts(self, texts: Sequence[str]) -> Value:
        """Convert the option's command-line arguments to its value. Raises ValueError if they are invalid."""
        if isinstance(self.default, tuple):
            return tuple(texts)
        if len(texts) > 1:
            raise ValueError(f"got {' and '.join(map(repr, texts))}, expected one value")
        text = texts[0] if texts else ""
        if isinstance(self.default, bool):
            if text not in ("", "true", "false", "toggle"):
                raise ValueError(f"got {text!r}, expected true or false")
            return text != "false"
        if isinstance(self.default, int):
            try:
                return int(text)
            except ValueError:
                raise ValueError(f"got {text!r}, {self._expected()}") from None
        if not texts:
            raise ValueError(f"got no value, {self._expected()}")
        return self._choice(text)

    def from_yaml(self, value: Any) -> Value:
        """Convert the option's entry in config.yaml to its value. Raises ValueError if the entry is invalid."""
        match self.default:
            case tuple() if isinstance(value, list) and all(isinstance(text, str) for text in value):
                return tuple(value)
            case bool() if isinstance(value, bool):
                return value
            case int() if isinstance(value, int) and not isinstance(value, bool) and not isinstance(self.default, bool):
                return value
            case str() if isinstance(value, str):
                return self._choice(value)
        raise ValueError(f"got {value!r}, {self._expected()}")

    def checked(self, value: Any) -> Any:
        """Check a value from mitmproxy's option manager and return it. Raises ValueError if the value is invalid."""
        if isinstance(self.default, tuple):
            return tuple(word.strip() for text in value for word in text.split(",") if word.strip())
        if isinstance(value, bool):
            return value
        if isinstance(value, int) and value < self.minimum:
            raise ValueError(f"got {value}, expected {self.minimum} or more")
        return self._choice(value)

    def _choice(self, value: Value) -> Value:
        if self.choices and value not in self.choices:
            raise ValueError(f"got {value!r}, {self._expected()}{nearest(str(value), self.choices)}")
        return value

    def _expected(self) -> str:
        match self.default:
            case tuple():
                return "expected a list of strings"
            case bool():
                return "expected true or false"
            case int():
                return f"expected a whole number, {self.minimum} or more"
        return f"expected one of {', '.join(self.choices)}" if self.choices else "expected a string"
