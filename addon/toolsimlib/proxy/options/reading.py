"""Reads an option's value in each of the forms in which it is given, with one set of messages.

The command line gives texts, config.yaml values with a type, mitmproxy's option manager values of the option's own
type. All raise ValueError, with a message that says what came and what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from toolsimlib.command_line import nearest
from toolsimlib.proxy.options.option import Option, Value


def from_texts(option: Option, texts: Sequence[str]) -> Value:
    """Return the value that a command line gives."""
    if isinstance(option.default, tuple):
        return tuple(texts)
    if len(texts) > 1:
        raise ValueError(f"got {' and '.join(map(repr, texts))}, expected one value")
    text = texts[0] if texts else ""
    if isinstance(option.default, bool):
        if text not in ("", "true", "false", "toggle"):
            raise ValueError(f"got {text!r}, expected true or false")
        return text != "false"
    if isinstance(option.default, int):
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"got {text!r}, {_expected(option)}") from None
    if not texts:
        raise ValueError(f"got no value, {_expected(option)}")
    return _choice(option, text)


def from_yaml(option: Option, value: Any) -> Value:
    """Return the value of an entry of config.yaml."""
    match option.default:
        case tuple() if isinstance(value, list) and all(isinstance(text, str) for text in value):
            return tuple(value)
        case bool() if isinstance(value, bool):
            return value
        case int() if isinstance(value, int) and not isinstance(value, bool) and not isinstance(option.default, bool):
            return value
        case str() if isinstance(value, str):
            return _choice(option, value)
    raise ValueError(f"got {value!r}, {_expected(option)}")


def checked(option: Option, value: Any) -> Any:
    """Return a value of the option's type, as mitmproxy holds it, if it is one that the option may have."""
    if isinstance(option.default, tuple):
        return tuple(words(value))
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value < option.minimum:
        raise ValueError(f"got {value}, expected {option.minimum} or more")
    return _choice(option, value)


def line_of(text: str, name: str) -> int:
    """Return the number of the line of a TOML text that sets a name, or begins the table of that name."""
    found = re.search(rf"""^[ \t]*\[*["']?{re.escape(name)}\b""", text, re.MULTILINE)
    return text.count("\n", 0, found.start()) + 1 if found else 1


def words(values: Iterable[str]) -> list[str]:
    """Return the words of a list, which commas may separate too."""
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


def _choice(option: Option, value: Value) -> Value:
    if option.choices and value not in option.choices:
        raise ValueError(f"got {value!r}, {_expected(option)}{nearest(str(value), option.choices)}")
    return value


def _expected(option: Option) -> str:
    match option.default:
        case tuple():
            return "expected a list of texts"
        case bool():
            return "expected true or false"
        case int():
            return f"expected a whole number, {option.minimum} or more"
    return f"expected one of {', '.join(option.choices)}" if option.choices else "expected a text"
