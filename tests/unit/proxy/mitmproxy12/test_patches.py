"""Replacement of mitmproxy's classes with toolsim's. The tests in tests/proxy use these classes in a real mitmdump."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from h11._readers import ChunkedReader
from mitmproxy.proxy.layers import http
from mitmproxy.proxy.layers.http import HttpStream, _http1
from toolsim.proxy.exchange import Exchanges
from toolsim.proxy.guard import Guard
from toolsim.proxy.mitmproxy12 import patches
from toolsim.proxy.mitmproxy12.chunks import JoiningReader
from toolsim.proxy.mitmproxy12.guarded import GuardedStream


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    patches.uninstall()  # Other tests load the addon without unloading it, which leaves the patches installed.
    yield
    patches.uninstall()
    assert http.HttpStream is HttpStream


def test_install_and_uninstall() -> None:
    """New connections use toolsim's classes while the addon is loaded, and mitmproxy's own classes afterwards."""
    patches.install(Exchanges(), Guard())
    patches.install(Exchanges(), Guard())
    assert (http.HttpStream, vars(_http1)["ChunkedReader"]) == (GuardedStream, JoiningReader)
    patches.uninstall()
    assert (http.HttpStream, vars(_http1)["ChunkedReader"]) == (HttpStream, ChunkedReader)
    patches.uninstall()
    assert http.HttpStream is HttpStream


def test_unsupported_mitmproxy_is_not_patched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If mitmproxy lacks a required attribute, nothing is patched, and a warning describes the effect on users."""
    monkeypatch.setattr(HttpStream, "state_stream_response_body", None)
    with caplog.at_level(logging.WARNING):
        patches.check()
    patches.install(Exchanges(), Guard())
    assert http.HttpStream is HttpStream
    assert "state_stream_response_body" in caplog.text
    assert "cannot end answers early" in caplog.text


def test_overridden_methods_exist() -> None:
    """Each method that toolsim overrides exists in mitmproxy. If mitmproxy renamed a method, the override would never
    be called.
    """
    rooms = [room for room in GuardedStream.__mro__ if room.__module__.startswith("toolsim.")]
    own = {"exchange", "layer", "stop_backend", "unpause", "answer", "wake", "forget_failed_connections"}
    own |= {"receive", "feed", "pause", "store", "sending", "framed", "stop_feeding", "end"}
    own |= {"ask", "poll", "resume", "over"}
    own |= {"keep_waiting", "begin_feeding", "frame_chunks"}
    own |= {"watched", "ending", "fail", "after_failure", "refusal", "send_failure", "fail_streamed", "break_off"}
    own |= {"is_refused", "resend", "state_resending"}
    overridden = {name for room in rooms for name, value in vars(room).items() if callable(value)} - own
    assert len(rooms) == 7
    assert overridden
    assert all(hasattr(HttpStream, name) for name in overridden)
    assert overridden <= set(patches.OVERRIDDEN)
