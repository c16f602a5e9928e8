"""Which streams mitmproxy creates; their behaviour is tested with a real mitmdump, in tests/proxy."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from mitmproxy.proxy.layers import http
from mitmproxy.proxy.layers.http import HttpStream
from toolsimlib.proxy import cut
from toolsimlib.proxy.cut import EndableStream


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    cut.uninstall()  # Addons loaded by other tests are not unloaded.
    yield
    cut.uninstall()
    assert http.HttpStream is HttpStream


def test_install_and_uninstall() -> None:
    """New streams are endable while the addon is loaded, even twice, and are mitmproxy's own afterwards."""
    cut.install()
    cut.install()
    assert http.HttpStream is EndableStream
    cut.uninstall()
    assert http.HttpStream is HttpStream
    cut.uninstall()
    assert http.HttpStream is HttpStream


def test_unknown_mitmproxy(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """If mitmproxy lacks what is needed, it is left alone, with a warning that names the consequence."""
    monkeypatch.setattr(HttpStream, "state_stream_response_body", None)
    with caplog.at_level(logging.WARNING):
        cut.install()
    assert http.HttpStream is HttpStream
    assert "state_stream_response_body" in caplog.text
    assert "cannot be cut off" in caplog.text


def test_all_that_is_overridden_exists() -> None:
    """Each method that the subclass overrides is one of mitmproxy's: a renamed one would never be called."""
    own = {"exchange", "wake", "send", "stop_backend", "end", "answer", "ended", "forget_failed_connections"}
    own |= {"sending", "feed", "is_refused", "send_again", "state_asking_again", "keep", "stop_feeding"}
    overridden = {name for name, value in vars(EndableStream).items() if callable(value)} - own
    assert overridden
    assert all(hasattr(HttpStream, name) for name in overridden)
    assert overridden <= set(cut._NEEDED)
