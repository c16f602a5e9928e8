"""The options that were given before the script was loaded (``--set``, config.yaml).

mitmproxy reads its command line before it loads a script. What it does not know yet it puts aside,
and applies it once the script has added its options. A wrong value then ends the loading of the
script in silence, and a name that nobody ever adds is not mentioned at all.

Relies on these internals of ``mitmproxy.optmanager`` 12.2: ``deferred`` holds them by name: a value
from a file as it is, texts from the command line as ``val`` of an object. An option that nobody has set has the
``value`` ``unset``; one that was set to its default has not.
"""

from __future__ import annotations

from typing import Any

from mitmproxy.optmanager import OptManager, unset


def given(options: OptManager) -> dict[str, Any]:
    """Return what was put aside, by name: the texts of the command line as a ``Texts``, or a value of a file."""
    found: dict[str, Any] = {}
    for name, deferred in options.deferred.items():
        texts = getattr(deferred, "val", None)
        found[name] = Texts(texts) if isinstance(texts, list) else deferred
    return found


class Texts(tuple[str, ...]):
    """The texts that a command line gives for one option."""


def drop(options: OptManager, name: str) -> None:
    """Do not apply what was put aside."""
    del options.deferred[name]


def rename(options: OptManager, name: str, new: str) -> bool:
    """Apply what was put aside, if anything was, to another option, unless that one was given too."""
    if name not in options.deferred:
        return False
    options.deferred.setdefault(new, options.deferred.pop(name))
    return True


def replace(options: OptManager, name: str, value: str) -> None:
    """Replace the value that was put aside, in the form in which it was given."""
    deferred = options.deferred[name]
    if hasattr(deferred, "val"):
        deferred.val = [value]
    else:
        options.deferred[name] = value


def set_by_hand(options: OptManager) -> frozenset[str]:
    """Return the names of the options that somebody has set, be it to their default."""
    return frozenset(name for name, option in options.items() if option.value is not unset)  # type: ignore[no-untyped-call]
