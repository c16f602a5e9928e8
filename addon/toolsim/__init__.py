"""Adds function calling to text-only model backends, as a mitmproxy addon. ``README.md`` describes the layers.

This package imports no other module, because mitmproxy and the pytest plugin import it at every start. ``parse`` and
``StreamParser`` from ``toolsim.parsing`` are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolsim.parsing import StreamParser, parse
    from toolsim.version import __version__

__all__ = ["StreamParser", "__version__", "parse"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        from toolsim.version import __version__ as found
    elif name in __all__:
        from toolsim import parsing

        found = getattr(parsing, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
