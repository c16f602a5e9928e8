"""Notifies mitmproxy that a flow has changed, so that mitmweb and the console redraw its row.

``AddonManager.trigger`` is discouraged, because it only reaches handlers that are not async. There is
no other call that works outside of a coroutine.
"""

from __future__ import annotations

from mitmproxy import ctx
from mitmproxy.hooks import UpdateHook
from mitmproxy.http import HTTPFlow


def updated(flow: HTTPFlow) -> None:
    """Notify mitmproxy that a flow has changed."""
    ctx.master.addons.trigger(UpdateHook([flow]))
