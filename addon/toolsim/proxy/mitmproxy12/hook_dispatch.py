"""Calls a hook only on addons that can handle it.

mitmproxy has about 45 addons of its own. For each of them, and for each of the ten hooks of a turn, it enters a context
manager and awaits a coroutine, although most addons handle none of these hooks. This module skips mitmproxy's own
addons whose class does not define the hook. This saves a sixth of the CPU time that mitmproxy needs for a short turn.

Relies on these internals of mitmproxy 12.2:

1. ``AddonManager.trigger_event`` awaits ``invoke_addon`` for each addon of ``chain``, in order, within ``safecall``,
   which logs exceptions; ``AddonHalt`` ends the loop.
2. mitmproxy's own addons define their hooks in their classes. Only addons with an attribute ``addons`` contain others.
"""

from __future__ import annotations

from mitmproxy.addonmanager import AddonManager, safecall
from mitmproxy.exceptions import AddonHalt
from mitmproxy.hooks import Hook

_ORIGINAL = AddonManager.trigger_event
_OWN_ADDONS = "mitmproxy.addons."

_skipped: dict[str, frozenset[type]] = {}
"""Maps each hook to the classes of mitmproxy's own addons that do not define the hook.

An entry is made at the hook's first call.
"""


def install() -> None:
    """From now on, skip addons that do not define the hook that is called."""
    AddonManager.trigger_event = _trigger_event  # type: ignore[method-assign]


def uninstall() -> None:
    """Restore mitmproxy's method for calling hooks."""
    AddonManager.trigger_event = _ORIGINAL  # type: ignore[method-assign]


async def _trigger_event(self: AddonManager, event: Hook) -> None:
    skipped = _skipped.get(event.name)
    if skipped is None:
        idle = (addon for addon in self.chain if not hasattr(addon, event.name) and not hasattr(addon, "addons"))
        skipped = frozenset(type(addon) for addon in idle if type(addon).__module__.startswith(_OWN_ADDONS))
        _skipped[event.name] = skipped
    for addon in self.chain:
        if type(addon) not in skipped:
            try:
                with safecall():
                    await self.invoke_addon(addon, event)
            except AddonHalt:
                return
