"""Hooks reach the same addons as through mitmproxy's own dispatch, in the same order, whatever the addons do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from mitmproxy.addonmanager import AddonManager, Loader
from mitmproxy.addons.maplocal import MapLocal
from mitmproxy.exceptions import AddonHalt
from mitmproxy.hooks import UpdateHook
from mitmproxy.http import HTTPFlow, Request
from mitmproxy.master import Master
from mitmproxy.options import Options
from mitmproxy.proxy.layers.http import HttpRequestHook, HttpResponseHook
from mitmproxy.test import taddons, tflow
from toolsimlib.proxy.dispatch import Dispatch


class _Addon:
    """Records that it was called, then acts as it was configured; may have addons of its own."""

    def __init__(
        self, name: str, calls: list[str], act: Callable[[], Any] = lambda: None, addons: tuple[Any, ...] = ()
    ) -> None:
        self.name, self._calls, self._act, self.addons = name, calls, act, addons

    def request(self, flow: HTTPFlow) -> Any:
        self._calls.append(self.name)
        return self._act()


class _Plain:
    """Has a handler in its class, and nothing else that could be one."""

    def __init__(self, name: str, calls: list[str], act: Callable[[], Any] = lambda: None) -> None:
        self.name, self.calls, self.act = name, calls, act

    def request(self, flow: HTTPFlow) -> Any:
        self.calls.append(self.name)
        return self.act()


class _Static(_Plain):
    @staticmethod
    def request(flow: HTTPFlow) -> None:  # type: ignore[override]
        raise ValueError("static")


class _Deaf:
    """Has no handler, but may hold addons that do."""

    def __init__(self, name: str, *addons: Any) -> None:
        self.name, self.addons = name, addons


class _Late(_Addon):
    """Has no handler until it is given one."""

    request = None  # type: ignore[assignment]


def _fail() -> None:
    raise ValueError("this one fails")


def _halt() -> None:
    raise AddonHalt


def _manager() -> tuple[AddonManager, list[str]]:
    """Return mitmproxy's own manager with all kinds of addons, and the list in which they record their calls."""
    calls: list[str] = []
    master = Master(Options(), with_termlog=False)
    manager = master.addons

    async def wait() -> None:
        calls.append("awaited")

    late = _Late("late", calls)

    def wake() -> None:
        late.request = lambda flow: calls.append("late")  # type: ignore[method-assign]

    module = ModuleType("a_script")
    vars(module)["addons"] = [_Addon("in a script", calls)]
    manager.add(
        _Deaf("nobody"),
        _Addon("first", calls, wake),
        late,
        _Deaf("holder", _Deaf("inner", _Addon("deep", calls, wait))),
        _Addon("failing", calls, _fail, (_Addon("behind the failing one", calls),)),
        SimpleNamespace(name="import", request=logging),  # A module with a hook's name is not a handler.
        SimpleNamespace(name="wrong", request=7),  # Nor is this one, which is an error.
        module,
        _Plain("plain", calls),
        _Plain("plain and awaited", calls, wait),
        _Plain("plain and failing", calls, _fail),
        (own := _Plain("with a handler of its own", calls)),
        (above := _Plain("plain, but with addons", calls)),
        _Static("static", calls),
        _Addon("above", calls, addons=(_Addon("below", calls),)),
        _Addon("halting", calls, _halt),
        _Addon("never", calls),
    )
    vars(own)["request"] = lambda flow: calls.append("its own")
    vars(above)["addons"] = [_Addon("below a plain one", calls)]
    return manager, calls


async def test_all_is_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """The same addons are called in the same order, and the same errors logged, with the addon and without it."""
    addons, calls = _manager()
    flow = tflow.tflow()

    async def called() -> tuple[list[str], list[str]]:
        calls.clear()
        caplog.clear()
        addons.lookup["late"].request = None
        await addons.handle_lifecycle(HttpRequestHook(flow))
        await addons.handle_lifecycle(HttpResponseHook(flow))
        return list(calls), [record.getMessage() for record in caplog.records]

    own = await called()
    assert own[0] == [
        *("first", "late", "deep", "awaited", "failing", "in a script"),
        *("plain", "plain and awaited", "awaited", "plain and failing"),
        *("its own", "plain, but with addons", "below a plain one", "above", "below", "halting"),
    ]
    assert len(own[1]) == 4

    dispatch = Dispatch()
    dispatch.load(Loader(addons.master))
    try:
        assert "trigger_event" in vars(addons)
        assert await called() == own
    finally:
        dispatch.done()
    assert "trigger_event" not in vars(addons)
    assert await called() == own


async def test_nobody_is_entered_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no addon has a handler for a hook, none of them is called."""
    addons, _ = _manager()

    async def entered(*_: object) -> None:
        raise AssertionError

    dispatch = Dispatch()
    dispatch.load(Loader(addons.master))
    monkeypatch.setattr(addons, "invoke_addon", entered)
    await addons.trigger_event(UpdateHook([tflow.tflow()]))


async def test_an_addon_that_cannot_be_inspected_is_left_to_mitmproxy(caplog: pytest.LogCaptureFixture) -> None:
    """An error while inspecting it is logged in mitmproxy's words, and the other addons are still called."""
    calls: list[str] = []

    class Odd:
        name = "odd"
        is_odd = False

        @property
        def addons(self) -> list[object]:
            if self.is_odd:
                raise RuntimeError("no addons today")
            return []

    class Behind(_Plain):
        def update(self, flows: list[HTTPFlow]) -> None:
            calls.append(f"update of {len(flows)}")

    manager = Master(Options(), with_termlog=False).addons
    manager.add(Odd(), Behind("behind", calls))
    Dispatch().load(Loader(manager.master))
    for is_odd in (True, False, True):
        Odd.is_odd = is_odd
        caplog.clear()
        await manager.handle_lifecycle(HttpRequestHook(tflow.tflow()))
        logged = ["no addons today" in str(record.exc_info) for record in caplog.records]
        assert logged == [True] * 2 * is_odd  # At the hook, and at the update.
    assert calls == ["behind", "update of 1"] * 3


async def test_a_handler_given_during_a_hook_is_called_at_the_next() -> None:
    calls: list[str] = []
    plain = SimpleNamespace(name="plain")

    def give() -> None:
        plain.request = lambda flow: calls.append("given")

    manager = Master(Options(), with_termlog=False).addons
    manager.add(_Plain("giving", calls, give), plain)
    Dispatch().load(Loader(manager.master))
    for _ in range(2):
        await manager.trigger_event(HttpRequestHook(tflow.tflow()))
    assert calls == ["giving", "giving", "given"]


async def test_a_handler_that_comes_later_is_called() -> None:
    """One given to an addon, one inside the addons that it is given, and one of an addon new in the chain."""
    calls: list[str] = []
    plain, holder = SimpleNamespace(name="plain"), SimpleNamespace(name="holder")
    manager = Master(Options(), with_termlog=False).addons
    manager.add(plain, holder)
    dispatch = Dispatch()
    dispatch.load(Loader(manager.master))

    async def called() -> list[str]:
        calls.clear()
        await manager.trigger_event(HttpRequestHook(tflow.tflow()))
        return list(calls)

    assert await called() == []
    plain.request = lambda flow: calls.append("plain")
    assert await called() == ["plain"]
    holder.addons = [_Addon("held", calls)]
    assert await called() == ["plain", "held"]
    new = _Addon("new", calls)
    manager.add(new)
    assert await called() == ["plain", "held", "new"]
    del plain.request
    assert await called() == ["held", "new"]
    manager.remove(new)
    assert await called() == ["held"]


async def test_addons_that_a_script_gets_later_are_called() -> None:
    """A script is asked at each hook, also for the addons that it holds."""
    calls: list[str] = []
    script = ModuleType("a_script")
    manager = Master(Options(), with_termlog=False).addons
    manager.add(script)
    Dispatch().load(Loader(manager.master))
    await manager.trigger_event(HttpRequestHook(tflow.tflow()))
    assert calls == []
    vars(script)["addons"] = [_Addon("held", calls)]
    await manager.trigger_event(HttpRequestHook(tflow.tflow()))
    assert calls == ["held"]


async def test_who_looks_up_attributes_in_its_own_way_is_asked() -> None:
    """Its class and its instance attributes do not show which hooks it handles."""
    calls: list[str] = []

    class Answers:
        name = "answers"

        def __getattr__(self, hook: str) -> Any:
            if hook == "request":
                return lambda flow: calls.append("answered")
            raise AttributeError

    class Slotted:
        __slots__ = ("name", "request")

    slotted = Slotted()
    slotted.name, slotted.request = "slotted", lambda flow: calls.append("slotted")
    manager = Master(Options(), with_termlog=False).addons
    manager.add(Answers(), slotted)
    Dispatch().load(Loader(manager.master))
    await manager.trigger_event(HttpRequestHook(tflow.tflow()))
    assert calls == ["answered", "slotted"]


@pytest.mark.parametrize("is_mapped", [False, True])
async def test_what_is_mapped_to_a_file_is_as_it_was(is_mapped: bool, tmp_path: Path) -> None:
    """mitmproxy's own handler is called as soon as anything is to be mapped, and not before."""
    (tmp_path / "answer").write_text("from a file")
    with taddons.context(mapped := MapLocal()) as mitm:
        mitm.options.map_local = [f"|//address|{tmp_path / 'answer'}"] * is_mapped
        mitm.master.addons.add(dispatch := Dispatch())
        flow = tflow.tflow()
        await mitm.master.addons.handle_lifecycle(HttpRequestHook(flow))
        assert bool(mapped.replacements) is is_mapped
        assert (flow.response is not None and flow.response.text) == ("from a file" if is_mapped else False)
        dispatch.done()


async def test_no_url_is_made_where_nothing_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """mitmproxy's own handler builds one first."""
    asked: list[HTTPFlow] = []
    monkeypatch.setattr(Request, "pretty_url", property(asked.append))
    with taddons.context(MapLocal()) as mitm:
        mitm.master.addons.add(dispatch := Dispatch())
        await mitm.master.addons.handle_lifecycle(HttpRequestHook(tflow.tflow()))
        dispatch.done()
    assert asked == []
