"""Dispatch of each hook to only those addons that implement it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from mitmproxy import addonmanager, hooks
from mitmproxy.addonmanager import AddonManager
from mitmproxy.addons import default_addons
from mitmproxy.exceptions import AddonHalt
from mitmproxy.master import Master
from mitmproxy.options import Options
from mitmproxy.proxy.layers.http import HttpRequestHook, HttpResponseHook
from mitmproxy.test.tflow import tflow
from toolsim.proxy.mitmproxy12 import hook_dispatch

HOOKS = ("request", "response", "update", "client_connected")


@pytest.fixture
async def manager() -> AsyncIterator[AddonManager]:
    hook_dispatch._skipped.clear()
    hook_dispatch.install()
    yield Master(Options()).addons
    hook_dispatch.uninstall()
    assert AddonManager.trigger_event is hook_dispatch._ORIGINAL


@dataclass
class Addon:
    """An addon that records the calls of its hooks, can contain other addons, and can raise an exception."""

    name: str
    calls: list[str]
    addons: list[Any] = field(default_factory=list)
    raises: Exception | None = None

    def request(self, _: Any) -> None:
        self.calls.append(self.name)
        if self.raises is not None:
            raise self.raises


class Late:
    """An addon whose hook is set on the instance after the addon was added."""


class Async:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    async def request(self, _: Any) -> None:
        self.calls.append("async")


async def triggered(manager: AddonManager) -> None:
    await manager.trigger_event(HttpRequestHook(tflow()))


async def test_custom_addons_are_called_in_order(manager: AddonManager) -> None:
    """Custom addons are called in the order of the chain, including nested and asynchronous addons, and addons added
    later."""
    calls: list[str] = []
    manager.add(Addon("a", calls, [Addon("a1", calls)]), *default_addons(), Async(calls), Addon("b", calls))
    await triggered(manager)
    assert calls == ["a", "a1", "async", "b"]
    calls.clear()
    manager.add(late := Late(), Addon("c", calls))
    late.request = lambda _: calls.append("late")  # type: ignore[attr-defined]
    await triggered(manager)
    assert calls == ["a", "a1", "async", "b", "late", "c"]


async def test_exceptions(manager: AddonManager, caplog: pytest.LogCaptureFixture) -> None:
    """If an addon raises an exception, it is logged, and the next addon is called. ``AddonHalt`` ends the hook."""
    calls: list[str] = []
    manager.add(Addon("a", calls, raises=ValueError("no")), Addon("b", calls, raises=AddonHalt()), Addon("c", calls))
    with caplog.at_level(logging.ERROR):
        await triggered(manager)
    assert calls == ["a", "b"]
    assert "ValueError: no" in caplog.text


@pytest.mark.parametrize("name", HOOKS)
async def test_mitmproxys_functions_are_called(
    name: str, manager: AddonManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each hook, exactly the functions that mitmproxy itself would call run, in the same order."""
    manager.add(*default_addons(), Addon("x", []))
    called: list[str] = []

    def record(self: AddonManager, addon: Any, event: hooks.Hook) -> Iterator[tuple[Any, Any]]:
        for part, function in original(self, addon, event):
            called.append(f"{type(part).__qualname__} {function.__qualname__}")
            yield part, lambda *_: None

    original = AddonManager._iter_hooks
    monkeypatch.setattr(AddonManager, "_iter_hooks", record)
    event = next(hook for hook in hooks.all_hooks.values() if hook.name == name)(tflow())
    await manager.trigger_event(event)
    ours = called[:]
    called.clear()
    await hook_dispatch._ORIGINAL(manager, event)
    assert ours == called
    assert ours or name not in ("request", "response")


async def test_addons_without_the_hook_are_skipped(manager: AddonManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addons without the hook are not visited. For a response, most of mitmproxy's own addons are skipped."""
    manager.add(*default_addons())
    visited = []

    def traverse(chain: list[Any]) -> Any:
        visited.extend(chain)
        return original(chain)

    original = addonmanager.traverse
    monkeypatch.setattr(addonmanager, "traverse", traverse)
    await manager.trigger_event(HttpResponseHook(tflow()))
    assert 0 < len(visited) < len(manager.chain) / 3
