"""Hooks go to the addons that have a handler for them, and past all others.

mitmproxy enters and leaves a context, a coroutine and two generators for each addon, to find that most have no handler:
with forty addons, 0.1 ms a hook. A hook about a flow is followed by another one, ``update``, which in mitmdump nobody
handles at all. A request has three such pairs before its first text.

So whoever has no handler is passed over at a glance. For the others all is as it was: each is asked at each hook anew,
in the same order. Of most, a glance at their own attributes is enough: their class has neither addons nor a way of its
own to look up attributes (``_look_at``), so that it is known whether it has a handler for this hook; that is called
right away. All others are left to mitmproxy itself. A class that is given a handler while the proxy runs is heard once
the chain of addons has changed.

What this leans on, in ``mitmproxy.addonmanager`` 12.2:

1. ``AddonManager.trigger_event`` calls ``invoke_addon`` for each addon of its ``chain``, in ``safecall``, up to the
   first that raises ``AddonHalt``.
2. A handler is an attribute with the hook's name, and not false, of an addon or of any of its ``addons``. It is called
   with ``Hook.args``, and awaited if what it returns can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import getattr_static, isawaitable
from types import FunctionType

from mitmproxy.addonmanager import AddonManager, Loader, safecall
from mitmproxy.exceptions import AddonHalt
from mitmproxy.hooks import Hook

# By these a class finds attributes in a way of its own.
_LOOK_UP = frozenset({"__getattr__", "__getattribute__"})

# An addon; with its own attributes, if its class is plain, and with the function that is its class's handler.
_Seen = tuple[object, Mapping[str, object] | None, Callable[..., object] | None]


class Dispatch:
    """An addon that shortens the way of all hooks while it is loaded."""

    def __init__(self) -> None:
        self._manager: AddonManager | None = None
        self._chain: list[object] = []
        self._seen: dict[str, list[_Seen]] = {}

    def load(self, loader: Loader) -> None:
        """Take over from mitmproxy."""
        manager: AddonManager = loader.master.addons
        self._manager = manager

        async def trigger_event(event: Hook) -> None:
            hook = event.name
            for addon, own, handler in self._look(manager.chain, hook):
                if own is None or hook in own or "addons" in own:
                    if not hears(addon, hook):
                        continue
                    handler = None
                elif handler is None:
                    continue
                try:
                    if handler is None:
                        await manager.invoke_addon(addon, event)
                    elif (result := handler(addon, *event.args())) is not None and isawaitable(result):
                        await result
                except AddonHalt:
                    return
                except Exception:
                    with safecall():  # Says what was raised, as it always does.
                        raise

        manager.trigger_event = trigger_event  # type: ignore[method-assign]

    def done(self) -> None:
        """Give the hooks back to mitmproxy."""
        if self._manager is not None:
            vars(self._manager).pop("trigger_event", None)

    def _look(self, chain: list[object], hook: str) -> list[_Seen]:
        """Return the addons, with what is known of each."""
        if chain != self._chain:
            self._chain, self._seen = [*chain], {}
        seen = self._seen.get(hook)
        if seen is None:
            seen = self._seen[hook] = [_look_at(addon, hook) for addon in chain]
        return seen


def _look_at(addon: object, hook: str) -> _Seen:
    """Return what is known of an addon. A plain class has one handler or none, and no say in what is looked up."""
    kind = type(addon)
    looks_up = any(not _LOOK_UP.isdisjoint(vars(each)) for each in kind.__mro__[:-1])
    if looks_up or hasattr(kind, "addons") or kind.__dictoffset__ == 0:
        return addon, None, None
    handler = getattr_static(kind, hook, None)
    is_plain = handler is None or isinstance(handler, FunctionType)
    return (addon, vars(addon), handler) if is_plain else (addon, None, None)


def hears(addon: object, hook: str) -> bool:
    """Return whether an addon, or one that it holds, may have a handler for a hook."""
    try:
        if getattr(addon, hook, None):
            return True
        return any(hears(each, hook) for each in getattr(addon, "addons", ()))
    except Exception:
        # mitmproxy is to find out, and to say it.
        return True
