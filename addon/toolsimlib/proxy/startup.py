"""Options as they are given at the start (``--set``, config.yaml), checked before mitmproxy applies them.

mitmproxy applies them once the script has added its options (``mitmproxy12.deferred``). A wrong value
then ends the loading of the script, in silence: the proxy would serve without toolsim, its key check
included. A name that nobody ever adds is not mentioned at all. So the entries that are ours are checked
while the script is loaded. Each problem is logged as an error, in one line, and mitmproxy ends a start
that has logged an error.

    toolsim_idle_timeout: got '5m', expected a whole number, 0 or more
    toolsim_bakend: no such option; did you mean toolsim_backend?

Nothing of this is needed while the proxy runs: mitmproxy refuses what ``set`` or mitmweb gets wrong, and keeps the old
value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any

from mitmproxy.exceptions import OptionsError
from mitmproxy.optmanager import OptManager
from mitmproxy.proxy.mode_specs import ProxyMode

from toolsimlib.proxy.builtin import check_together
from toolsimlib.proxy.mitmproxy12 import deferred
from toolsimlib.proxy.options.settings import parse
from toolsimlib.proxy.options.table import OPTIONS, PREFIX, Option, Value

_OURS = re.compile(r"toolsim[\W_]*", re.IGNORECASE)
_BY_NAME = {option.full_name: option for option in OPTIONS}


def take_problems(options: OptManager) -> list[str]:
    """Remove what is wrong from the entries that mitmproxy has put aside; return one line for each problem.

    ``options``: mitmproxy's, with ours among them, at their defaults or, when the script is reloaded, at their values.
    """
    current = {option.full_name: getattr(options, option.full_name) for option in OPTIONS}
    problems: dict[str, str] = {}
    given: dict[str, Value] = {}
    for name, value in deferred.given(options).items():
        try:
            if name in _BY_NAME:
                given[name] = _value(_BY_NAME[name], value)
                # Each by itself, so that each wrong one is named.
                parse(SimpleNamespace(**current | {name: given[name]}))
            elif _OURS.match(name):
                problems[name] = f"{name}: no such option{_did_you_mean(name)}"
        except ValueError as problem:
            problems[name] = f"{name}: {problem}"
        except OptionsError as problem:
            problems[name] = str(problem)
    for name in problems:
        deferred.drop(options, name)
    if problems:
        return list(problems.values())
    try:
        hosts = [ProxyMode.parse(mode).listen_host(options.listen_host) for mode in options.mode]
        check_together(parse(SimpleNamespace(**current | given)), hosts)
    except OptionsError as problem:
        return [str(problem)]
    return []


def _value(option: Option, entry: Any) -> Value:
    """Return the value of an entry, of the option's type. Raises ValueError."""
    value = _from_texts(option, entry) if isinstance(entry, deferred.Texts) else _from_yaml(option, entry)
    if option.choices and value not in option.choices:
        raise ValueError(f"got {value!r}, expected one of {', '.join(option.choices)}{_nearest(value, option.choices)}")
    return value


def _from_texts(option: Option, texts: Sequence[str]) -> Value:
    if isinstance(option.default, tuple):
        return tuple(texts)
    if len(texts) > 1:
        raise ValueError(f"got {' and '.join(map(repr, texts))}, expected one value")
    text = texts[0] if texts else ""
    match option.default:
        case bool():
            if text not in ("", "true", "false", "toggle"):
                raise ValueError(f"got {text!r}, expected true or false")
            return text != "false"
        case int():
            try:
                return int(text)
            except ValueError:
                raise ValueError(f"got {text!r}, {_expected(option)}") from None
    if not texts:
        raise ValueError(f"got no value, {_expected(option)}")
    return text


def _from_yaml(option: Option, value: Any) -> Value:
    match option.default:
        case tuple() if isinstance(value, list) and all(isinstance(text, str) for text in value):
            return tuple(value)
        case bool() if isinstance(value, bool):
            return value
        case int() if isinstance(value, int) and not isinstance(value, bool) and not isinstance(option.default, bool):
            return value
        case str() if isinstance(value, str):
            return value
    raise ValueError(f"got {value!r}, {_expected(option)}")


def _expected(option: Option) -> str:
    match option.default:
        case tuple():
            return "expected a list of texts"
        case bool():
            return "expected true or false"
        case int():
            return f"expected a whole number, {option.minimum} or more"
    return f"expected one of {', '.join(option.choices)}" if option.choices else "expected a text"


def _did_you_mean(name: str) -> str:
    """Return a hint at the option that an unknown name is nearest to."""
    rest = re.sub(r"\W", "_", _OURS.sub("", name).lower())
    return (
        _nearest(rest, [option.name for option in OPTIONS], PREFIX) or f"; their names begin with {PREFIX}, see README"
    )


def _nearest(word: object, known: Sequence[str], prefix: str = "") -> str:
    near = get_close_matches(str(word).lower(), known, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
