"""Checks the options that are set at startup (``--set``, config.yaml) before mitmproxy applies them.

mitmproxy applies them once the script has added its options (``mitmproxy12.deferred``). An invalid value would then
silently stop the script from loading: the proxy would run without toolsim and its key check. mitmproxy does not report
unknown option names at all. So toolsim checks its own options while the script is loaded, and logs each problem as a
one-line error. mitmproxy exits if errors were logged at startup.

    toolsim_idle_timeout: got '5m', expected a whole number, 0 or more
    toolsim_bakend: no such option; did you mean toolsim_backend?
    toolsim_use_tool: this option was removed: set toolsim_untagged=no_use_tool if the old value was false

While the proxy runs, these checks are not needed: mitmproxy rejects an invalid value from ``set`` or mitmweb, and keeps
the old value.
"""

from __future__ import annotations

import logging
import os
import re
from types import SimpleNamespace
from typing import Any

from mitmproxy.exceptions import OptionsError
from mitmproxy.optmanager import OptManager
from mitmproxy.proxy.mode_specs import ProxyMode

from toolsim.command_line import nearest
from toolsim.proxy.legacy import REMOVED, RENAMED, RENAMED_VALUES, current_value
from toolsim.proxy.mitmproxy12 import deferred
from toolsim.proxy.options.option import PREFIX, Option, Value
from toolsim.proxy.options.profiles import with_profiles
from toolsim.proxy.options.settings import check_together, parse, parse_value
from toolsim.proxy.options.table import OPTIONS

logger = logging.getLogger(__name__)

_OURS = re.compile(r"toolsim[\W_]*", re.IGNORECASE)
_BY_NAME = {option.full_name: option for option in OPTIONS}


def take_problems(options: OptManager) -> list[str]:
    """Remove invalid entries from the options that mitmproxy has deferred, and return one line for each problem.

    ``options`` are mitmproxy's options, including toolsim's, which have their default values unless the script is being
    reloaded.
    """
    for old, new in RENAMED.items():
        if deferred.rename(options, PREFIX + old, PREFIX + new):
            logger.warning("%s%s: this option is now called %s%s", PREFIX, old, PREFIX, new)
    for name, value in deferred.options_set_early(options).items():
        _rename_value(options, name, value)
    current = {option.full_name: getattr(options, option.full_name) for option in OPTIONS}
    problems: dict[str, str] = {}
    given: dict[str, Value] = {}
    for name, value in deferred.options_set_early(options).items():
        try:
            if name in _BY_NAME:
                given[name] = _value(_BY_NAME[name], value)
                # Each option is parsed separately, so that every invalid option is reported. Combinations of options
                # are checked below.
                parse_value(_BY_NAME[name], given[name])
            elif _OURS.match(name):
                problems[name] = _unknown(name)
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
        settings = with_profiles(parse(SimpleNamespace(**current | given)), os.environ)
        check_together(settings, hosts)
    except OptionsError as problem:
        return [str(problem)]
    return []


def _rename_value(options: OptManager, name: str, entry: Any) -> None:
    """Replace a value's former name with its current name, and log a warning."""
    short = name.removeprefix(PREFIX)
    old = entry[0] if isinstance(entry, deferred.Texts) and len(entry) == 1 else entry
    if short in RENAMED_VALUES and (new := current_value(short, old)) != old:
        deferred.replace(options, name, new)
        logger.warning("%s: the value %s is now called %s", name, old, new)


def _value(option: Option, entry: Any) -> Value:
    """Return the value of an entry, converted to the option's type. Raises ValueError if this is impossible."""
    return option.from_texts(entry) if isinstance(entry, deferred.Texts) else option.from_yaml(entry)


def _unknown(name: str) -> str:
    """Return the error for an unknown option name. The error suggests the option's replacement or a similar name."""
    rest = re.sub(r"\W", "_", _OURS.sub("", name).lower())
    if rest in REMOVED:
        return f"{name}: this option was removed: {REMOVED[rest]}"
    hint = nearest(rest, [option.name for option in OPTIONS], PREFIX)
    return f"{name}: no such option{hint or f'; option names begin with {PREFIX} (see README)'}"
