"""Reads and changes options that were set before the script was loaded, with ``--set`` or in config.yaml.

mitmproxy reads its command line before it loads a script. It defers options that it does not know yet, and applies them
once the script has added its options. An invalid value then silently aborts the loading of the script, and an unknown
name is not reported at all.

Relies on these internals of ``mitmproxy.optmanager`` 12.2: ``deferred`` maps names to deferred values. A value from a
file is stored unchanged. Strings from the command line are stored as the ``val`` of an object. The ``value`` of an
option is ``unset`` until the option is set. Setting an option to its default counts as setting it.
"""

from __future__ import annotations

from typing import Any

from mitmproxy.optmanager import OptManager, unset


def options_set_early(options: OptManager) -> dict[str, Any]:
    """Return the deferred options by name.

    Values from the command line are converted to ``Texts``. Values from config.yaml are unchanged.
    """
    found: dict[str, Any] = {}
    for name, deferred in options.deferred.items():
        texts = getattr(deferred, "val", None)
        found[name] = Texts(texts) if isinstance(texts, list) else deferred
    return found


class Texts(tuple[str, ...]):
    """All values of one option on the command line, as unparsed strings."""


def drop(options: OptManager, name: str) -> None:
    """Discard a deferred option."""
    del options.deferred[name]


def rename(options: OptManager, name: str, new: str) -> bool:
    """Rename a deferred option. If ``new`` is itself deferred, keep its value and discard the value of ``name``.

    Return False if no option ``name`` is deferred.
    """
    if name not in options.deferred:
        return False
    options.deferred.setdefault(new, options.deferred.pop(name))
    return True


def replace(options: OptManager, name: str, value: str) -> None:
    """Replace a deferred value, and store the new value in the same form as the old one."""
    deferred = options.deferred[name]
    if hasattr(deferred, "val"):
        deferred.val = [value]
    else:
        options.deferred[name] = value


def set_by_hand(options: OptManager) -> frozenset[str]:
    """Return the names of the options that were set explicitly, even to their default values."""
    return frozenset(name for name, option in options.items() if option.value is not unset)  # type: ignore[no-untyped-call]
