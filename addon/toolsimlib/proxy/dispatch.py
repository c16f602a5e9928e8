"""Calls only the addons that have a handler for a hook.

mitmproxy enters and leaves a context, a coroutine and two generators for each addon, only to find that most have no
handler: with forty addons, 0.1 ms per hook. Each hook about a flow is followed by another one, ``update``, which no
addon in mitmdump handles. A request has three such pairs before its first text.

So we look up the handlers once, and again whenever an addon is added or removed, or the number of attributes changes.
For most addons, the class and the instance attributes show the handlers (``_is_plain``). We look up those of the others
(such as scripts) at each hook. The order is mitmproxy's. A handler that an addon gets while a hook runs is called from
the next hook on; one that a class gets, only after an addon was added or removed.

``begin`` runs a hook inline, for streams that should not wait (``prompt``).

Relies on these internals of ``mitmproxy.addonmanager`` 12.2:

1. ``AddonManager.trigger_event`` calls ``invoke_addon`` for each addon of its ``chain``, in ``safecall``, up to the
   first that raises ``AddonHalt``.
2. ``AddonManager.handle_lifecycle`` triggers a hook and, if its first argument is a flow, ``update``. A connection
   awaits it for each of its hooks.
3. A handler is a truthy attribute with the hook's name, of an addon or of any of its ``addons``. It is called with
   ``Hook.args``, and its result is awaited if it is awaitable. One that raises prevents later handlers in the same
   addon of the chain from being called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from inspect import getattr_static, isawaitable
from types import FunctionType, ModuleType
from typing import Any, ClassVar

from mitmproxy.addonmanager import AddonManager, Loader, safecall, traverse
from mitmproxy.addons.maplocal import MapLocal
from mitmproxy.exceptions import AddonHalt, AddonManagerError
from mitmproxy.flow import Flow
from mitmproxy.hooks import Hook, UpdateHook
from mitmproxy.http import HTTPFlow

# A class with one of these looks up attributes in its own way.
_LOOKUP_METHODS = frozenset({"__getattr__", "__getattribute__"})

# The objects that may handle a hook, among one addon of the chain and those that it holds: each with the handler of its
# class, None if it has to be looked up at each hook.
_Handlers = list[tuple[object, Callable[..., object] | None]]


def _mapped(addon: MapLocal, flow: HTTPFlow) -> None:
    """Skip the handler if nothing is mapped: mitmproxy assembles the URL of each request before it checks that."""
    if addon.replacements:
        MapLocal.request(addon, flow)


# Cheaper equivalents of mitmproxy's own handlers.
_CHEAPER: Mapping[Callable[..., object], Callable[..., object]] = {MapLocal.request: _mapped}


class Dispatch:
    """An addon that takes over the dispatch of all hooks while it is loaded."""

    started: ClassVar[dict[Hook, asyncio.Task[None]]] = {}
    """The task of each hook that is already running: mitmproxy awaits it, and does not run the hook again.

    One for all instances, so that a reload loses none.
    """

    def __init__(self) -> None:
        self._manager: AddonManager | None = None
        self._snapshot: _Snapshot | None = None
        self._is_done = False

    def load(self, loader: Loader) -> None:
        """Take over from mitmproxy."""
        self._manager = loader.master.addons
        self._manager.trigger_event = self._trigger_event  # type: ignore[method-assign]
        self._manager.handle_lifecycle = self._handle_lifecycle  # type: ignore[method-assign]

    def done(self) -> None:
        """Give the hooks back to mitmproxy."""
        self._is_done = True
        if self._manager is not None:
            vars(self._manager).pop("trigger_event", None)
            self._release_lifecycle(self._manager)

    def _release_lifecycle(self, manager: AddonManager) -> None:
        # mitmproxy would run hooks that have started once more. Another instance may have taken over meanwhile.
        if not self.started and vars(manager).get("handle_lifecycle") == self._handle_lifecycle:
            del manager.handle_lifecycle

    def begin(self, hook: Hook) -> asyncio.Task[None]:
        """Run a hook inline; the task is done unless a handler has to wait for something."""
        assert self._manager is not None
        return asyncio.eager_task_factory(asyncio.get_running_loop(), self._manager.handle_lifecycle(hook))

    async def _handle_lifecycle(self, event: Hook) -> None:
        if (started := self.started.pop(event, None)) is not None:
            if self._is_done and self._manager is not None:
                self._release_lifecycle(self._manager)
            await started
            return
        arguments = event.args()
        message = arguments[0]
        await self._call_handlers(event, arguments)
        if isinstance(message, Flow) and (self._snapshot is None or self._snapshot.handlers("update")):
            await self._trigger_event(UpdateHook([message]))

    async def _trigger_event(self, event: Hook) -> None:
        await self._call_handlers(event, event.args())

    async def _call_handlers(self, event: Hook, arguments: list[Any]) -> None:
        assert self._manager is not None
        snapshot, chain = self._snapshot, self._manager.chain
        try:
            if snapshot is None or not snapshot.is_all_of(chain):
                snapshot = _Snapshot(chain)
        except Exception:
            # mitmproxy meets the same error, and logs it.
            self._snapshot = None
            await AddonManager.trigger_event(self._manager, event)
            return
        self._snapshot = snapshot
        for handlers in snapshot.handlers(event.name):
            try:
                for addon, handler in handlers:
                    result = _call(addon, event, arguments) if handler is None else handler(addon, *arguments)
                    if result is not None and isawaitable(result):
                        await result
            except AddonHalt:
                return
            except Exception:
                with safecall():  # mitmproxy logs the exception as usual.
                    raise


class _Snapshot:
    """A snapshot of the addons of a chain and those that they hold."""

    def __init__(self, chain: list[object]) -> None:
        self._chain = [*chain]
        self._groups: list[list[object]] = [[*traverse([addon])] for addon in chain]  # type: ignore[no-untyped-call]
        flat = [addon for held in self._groups for addon in held]
        # We do not count the attributes of one that is not plain, so it may get addons unnoticed.
        self._holders = [addon for addon in flat if hasattr(addon, "addons") or not _is_plain(addon)]
        self._held = self._held_now()
        self._attributes: list[Mapping[str, object]] = [vars(addon) for addon in flat if _is_plain(addon)]
        self._count = self._attribute_count()
        self._handlers: dict[str, list[_Handlers]] = {}

    def is_all_of(self, chain: list[object]) -> bool:
        """Return whether a chain has the same addons as the snapshot, with as many attributes."""
        if chain != self._chain or self._attribute_count() != self._count:
            return False
        return self._held_now() == self._held

    def handlers(self, hook: str) -> list[_Handlers]:
        """Return the objects that may handle a hook, grouped by addon of the chain."""
        found = self._handlers.get(hook)
        if found is None:
            groups = ([*_handlers_of(held, hook)] for held in self._groups)
            found = self._handlers[hook] = [handlers for handlers in groups if handlers]
        return found

    def _held_now(self) -> list[list[object]]:
        return [[*getattr(holder, "addons", ())] for holder in self._holders]

    def _attribute_count(self) -> int:
        return sum(map(len, self._attributes))


def _is_plain(addon: object) -> bool:
    """Return whether an addon's class and instance attributes show which hooks it handles."""
    kind = type(addon)
    return kind.__dictoffset__ != 0 and all(_LOOKUP_METHODS.isdisjoint(vars(base)) for base in kind.__mro__[:-1])


def _handlers_of(addons: list[object], hook: str) -> Iterator[tuple[object, Callable[..., object] | None]]:
    for addon in addons:
        if not _is_plain(addon):
            yield addon, None
            continue
        handler = None if hook in vars(addon) else getattr_static(type(addon), hook, None)
        if isinstance(handler, FunctionType):
            yield addon, _CHEAPER.get(handler, handler)
        elif handler is not None or hook in vars(addon):
            yield addon, None


def _call(addon: object, event: Hook, arguments: list[Any]) -> Any:
    """Look up an addon's handler, and call it if there is one."""
    handler = getattr(addon, event.name, None)
    if not handler or isinstance(handler, ModuleType):
        return None
    if not callable(handler):
        raise AddonManagerError(f"Addon handler {event.name} ({addon}) not callable")  # type: ignore[no-untyped-call]
    return handler(*arguments)
