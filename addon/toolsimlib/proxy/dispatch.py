"""Hooks go to the addons that have a handler for them, and past all others.

mitmproxy enters and leaves a context, a coroutine and two generators for each addon, to find that most have no handler:
with forty addons, 0.1 ms a hook. A hook about a flow is followed by another one, ``update``, which in mitmdump nobody
handles at all. A request has three such pairs before its first text.

So we find out once who has a handler, and again whenever an addon was added or removed, or got a new attribute. For
most addons, the class and their own attributes say it (``_is_plain``). The others (scripts among them) are asked at
each hook. The order is mitmproxy's. A handler that an addon gets while a hook runs is called from the next hook on; one
that a class gets, once an addon was added or removed.

A hook can also be run where it is met (``begin``), for streams that would rather not wait (``prompt``).

What this leans on, in ``mitmproxy.addonmanager`` 12.2:

1. ``AddonManager.trigger_event`` calls ``invoke_addon`` for each addon of its ``chain``, in ``safecall``, up to the
   first that raises ``AddonHalt``.
2. ``AddonManager.handle_lifecycle`` triggers a hook and, if its first argument is a flow, ``update``. A connection
   awaits it for each of its hooks.
3. A handler is an attribute with the hook's name, and not false, of an addon or of any of its ``addons``. It is called
   with ``Hook.args``, and awaited if what it returns can be. One that raises keeps those behind it, in the same addon
   of the chain, from being called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from inspect import getattr_static, isawaitable
from types import FunctionType, ModuleType
from typing import Any

from mitmproxy.addonmanager import AddonManager, Loader, safecall, traverse
from mitmproxy.addons.maplocal import MapLocal
from mitmproxy.exceptions import AddonHalt, AddonManagerError
from mitmproxy.flow import Flow
from mitmproxy.hooks import Hook, UpdateHook
from mitmproxy.http import HTTPFlow

# By these a class finds attributes in a way of its own.
_LOOK_UP = frozenset({"__getattr__", "__getattribute__"})

# Which objects may handle a hook, of one addon of the chain and those that it holds: each with its class's handler,
# None if it is to be asked.
_Hearers = list[tuple[object, Callable[..., object] | None]]


def _mapped(addon: MapLocal, flow: HTTPFlow) -> None:
    """mitmproxy puts the URL of each request together, before it looks whether there is anything to map."""
    if addon.replacements:
        MapLocal.request(addon, flow)


# What is called in place of one of mitmproxy's own handlers, to the same effect.
_SHORTER: Mapping[Callable[..., object], Callable[..., object]] = {MapLocal.request: _mapped}


class Dispatch:
    """An addon that shortens the way of all hooks while it is loaded."""

    def __init__(self) -> None:
        self._manager: AddonManager | None = None
        self._seen: _Seen | None = None
        self.begun: dict[Hook, asyncio.Task[None]] = {}
        """Hooks that run already, and in which task: there mitmproxy waits for it, and runs none of them again."""

    def load(self, loader: Loader) -> None:
        """Take over from mitmproxy."""
        self._manager = loader.master.addons
        self._manager.trigger_event = self._trigger_event  # type: ignore[method-assign]
        self._manager.handle_lifecycle = self._handle_lifecycle  # type: ignore[method-assign]

    def done(self) -> None:
        """Give the hooks back to mitmproxy."""
        if self._manager is not None:
            vars(self._manager).pop("trigger_event", None)
            vars(self._manager).pop("handle_lifecycle", None)

    def begin(self, hook: Hook) -> asyncio.Task[None]:
        """Run a hook here and now; the task is done unless somebody has to wait for something."""
        assert self._manager is not None
        return asyncio.eager_task_factory(asyncio.get_running_loop(), self._manager.handle_lifecycle(hook))

    async def _handle_lifecycle(self, event: Hook) -> None:
        if (begun := self.begun.pop(event, None)) is not None:
            await begun
            return
        arguments = event.args()
        message = arguments[0]
        await self._tell(event, arguments)
        if isinstance(message, Flow) and (self._seen is None or self._seen.hearers("update")):
            await self._trigger_event(UpdateHook([message]))

    async def _trigger_event(self, event: Hook) -> None:
        await self._tell(event, event.args())

    async def _tell(self, event: Hook, arguments: list[Any]) -> None:
        assert self._manager is not None
        seen, chain = self._seen, self._manager.chain
        try:
            if seen is None or not seen.is_all_of(chain):
                seen = _Seen(chain)
        except Exception:
            # mitmproxy is to find out, and to say it.
            self._seen = None
            await AddonManager.trigger_event(self._manager, event)
            return
        self._seen = seen
        for hearers in seen.hearers(event.name):
            try:
                for addon, handler in hearers:
                    result = _ask(addon, event, arguments) if handler is None else handler(addon, *arguments)
                    if result is not None and isawaitable(result):
                        await result
            except AddonHalt:
                return
            except Exception:
                with safecall():  # Says what was raised, as it always does.
                    raise


class _Seen:
    """The addons of a chain and those that they hold, as they were when they were looked at."""

    def __init__(self, chain: list[object]) -> None:
        self._chain = [*chain]
        self._everyone: list[list[object]] = [[*traverse([addon])] for addon in chain]  # type: ignore[no-untyped-call]
        flat = [each for held in self._everyone for each in held]
        # One that is not plain may come to hold addons without our counting it.
        self._holders = [each for each in flat if hasattr(each, "addons") or not _is_plain(each)]
        self._held = self._held_now()
        self._attributes: list[Mapping[str, object]] = [vars(each) for each in flat if _is_plain(each)]
        self._count = self._counted()
        self._hearers: dict[str, list[_Hearers]] = {}

    def is_all_of(self, chain: list[object]) -> bool:
        """Return whether the addons of a chain are these, with as many attributes as they had."""
        if chain != self._chain or self._counted() != self._count:
            return False
        return self._held_now() == self._held

    def hearers(self, hook: str) -> list[_Hearers]:
        """Return which objects may handle a hook, for each addon of the chain by itself."""
        found = self._hearers.get(hook)
        if found is None:
            everyone = ([*_hearers(held, hook)] for held in self._everyone)
            found = self._hearers[hook] = [hearers for hearers in everyone if hearers]
        return found

    def _held_now(self) -> list[list[object]]:
        return [[*getattr(holder, "addons", ())] for holder in self._holders]

    def _counted(self) -> int:
        return sum(map(len, self._attributes))


def _is_plain(addon: object) -> bool:
    """Return whether an addon's class, and its own attributes, say which hooks it handles."""
    kind = type(addon)
    return kind.__dictoffset__ != 0 and all(_LOOK_UP.isdisjoint(vars(each)) for each in kind.__mro__[:-1])


def _hearers(addons: list[object], hook: str) -> Iterator[tuple[object, Callable[..., object] | None]]:
    for addon in addons:
        if not _is_plain(addon):
            yield addon, None
            continue
        handler = None if hook in vars(addon) else getattr_static(type(addon), hook, None)
        if isinstance(handler, FunctionType):
            yield addon, _SHORTER.get(handler, handler)
        elif handler is not None or hook in vars(addon):
            yield addon, None


def _ask(addon: object, event: Hook, arguments: list[Any]) -> Any:
    """Call what an addon says that its handler is, if it says so."""
    handler = getattr(addon, event.name, None)
    if not handler or isinstance(handler, ModuleType):
        return None
    if not callable(handler):
        raise AddonManagerError(f"Addon handler {event.name} ({addon}) not callable")  # type: ignore[no-untyped-call]
    return handler(*arguments)
