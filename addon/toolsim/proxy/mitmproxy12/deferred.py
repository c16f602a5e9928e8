"""The options that were set before the script was loaded (``--set``, config.yaml).

mitmproxy reads its command line before it loads a script. It defers options that it does not know yet, and applies them
once the script has added its options. An invalid value then silently ends the loading of the script, and an unknown
name is not reported at all.

Relies on these internals of ``mitmproxy.optmanager`` 12.2: ``deferred`` holds them by name: a value
from a file as it is, texts from the command line as ``val`` of an object. An option that has not been set has the
``value`` ``unset``; an option that was set to its default has not.
"""

from __future__ import annotations

from typing import Any

from mitmproxy.optmanager import OptManager, unset


def options_set_early(options: OptManager) -> dict[str, Any]:
    """Return the deferred options by name: the texts of the command line as a ``Texts``, or a value from a file."""
    found: dict[str, Any] = {}
    for name, deferred in options.deferred.items():
        texts = getattr(deferred, "val", None)
        found[name] = Texts(texts) if isinstance(texts, list) else deferred
    return found


class Texts(tuple[str, ...]):
    """The texts of a command line for one option."""


def drop(options: OptManager, name: str) -> None:
    """Discard a deferred option."""
    del options.deferred[name]


def rename(options: OptManager, name: str, new: str) -> bool:
    """Apply a deferred option, if any, to another option, unless that one was set too."""
    if name not in options.deferred:
        return False
    options.deferred.setdefault(new, options.deferred.pop(name))
    return True


def replace(options: OptManager, name: str, value: str) -> None:
    """Replace a deferred value, keeping its form."""
    deferred = options.deferred[name]
    if hasattr(deferred, "val"):
        deferred.val = [value]
    else:
        options.deferred[name] = value


def set_by_hand(options: OptManager) -> frozenset[str]:
    """Return the names of the explicitly set options, even if they have their default value."""
    return frozenset(name for name, option in options.items() if option.value is not unset)  # type: ignore[no-untyped-call]
