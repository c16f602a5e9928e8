"""Tests that toolsim's arguments and options are checked before mitmproxy reads them."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest
from mitmproxy.options import Options
from support.each import each
from toolsim.cli import arguments, serve
from toolsim.command_line import UsageError
from toolsim.plugins import BUILTIN

SUCH = "expected a URL such as http://127.0.0.1:11434/v1"


@each(
    ("kind", "text", "message"),
    [
        (
            arguments.backend_url,
            "localhost:11434",
            f"got 'localhost:11434', {SUCH}; did you mean http://localhost:11434?",
        ),
        (arguments.backend_url, "ftp://host", f"got 'ftp://host', {SUCH}"),
        (arguments.backend_url, "http://", f"got 'http://', {SUCH}"),
        (arguments.backend_url, "http://host:port", f"got 'http://host:port', {SUCH}"),
        (arguments.backend_url, "http://[::1", f"got 'http://[::1', {SUCH}"),
        (arguments.backend_url, "http://host/a b", f"got 'http://host/a b', {SUCH}"),
        (arguments.backend_url, "http://host/v1?key=x", f"got 'http://host/v1?key=x', {SUCH}"),
        (arguments.backend_url, "", f"got '', {SUCH}"),
        (arguments.backend_url, "codex", "got 'codex', expected a URL; did you mean toolsim codex?"),
        (arguments.backend_url, "scripted", "got 'scripted', expected a URL; did you mean toolsim demo?"),
        (
            arguments.backend_url,
            "http://host/v1/chat/completions",
            "got 'http://host/v1/chat/completions', expected a base URL, without /chat/completions; did you mean "
            "http://host/v1?",
        ),
        (
            arguments.backend_url,
            "http://host/v1/messages/",
            "got 'http://host/v1/messages/', expected a base URL, without /messages/; did you mean http://host/v1?",
        ),
        *(
            (
                arguments.backend_url,
                text,
                f"got {text!r}, which is Ollama's native API, expected its OpenAI-compatible API; did you mean "
                f"http://{text.split('/')[2]}/v1?",
            )
            for text in ("http://host/api/chat", "http://host:9/api/generate/", "http://host:11434/api")
        ),
        (arguments.recorded_backend, "ollama", "got 'ollama', expected a URL; did you mean http://127.0.0.1:11434/v1?"),
        (arguments.port, "http", "got 'http', expected a port number from 0 to 65535"),
        (arguments.port, "70000", "got '70000', expected a port number from 0 to 65535"),
        (arguments.port, "-1", "got '-1', expected a port number from 0 to 65535"),
        (arguments.setting, "toolsim_log", "got 'toolsim_log', expected NAME=VALUE"),
        (arguments.setting, "=x", "got '=x', expected NAME=VALUE"),
        (arguments.setting, "backend=chat", "backend: no such option; did you mean toolsim_backend?"),
    ],
)
def test_invalid_arguments_are_refused(kind: Callable[[str], object], text: str, message: str) -> None:
    """The error for an invalid argument states the value, the expected format and, if possible, a suggestion."""
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        kind(text)
    assert str(refused.value) == message


def test_added_builtin_backend_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a built-in backend is added to the ``BUILTIN`` table, the commands ``serve`` and ``record`` accept its
    name.
    """
    monkeypatch.setitem(BUILTIN, "echo", BUILTIN["scripted"])  # type: ignore[arg-type]
    assert (arguments.served_backend("echo"), arguments.recorded_backend("echo")) == ("echo", "echo")
    assert "toolsim_backend=echo" in serve.arguments(serve.Start("echo"))


def test_valid_arguments_are_unchanged() -> None:
    for url in ("http://127.0.0.1:11434", "https://host/base/v1/", "http://[::1]:8000/v1"):
        assert arguments.backend_url(url) == url
    assert arguments.recorded_backend("codex") == "codex"
    assert (arguments.port("0"), arguments.port("65535")) == (0, 65535)
    assert arguments.setting("toolsim_sentinel=a=b") == "toolsim_sentinel=a=b"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("toolsim_bakend=chat", "toolsim_bakend: no such option; did you mean toolsim_backend?"),
        ("toolsim_idle_timeout=5m", "toolsim_idle_timeout: got '5m', expected a whole number, 0 or more"),
        ("toolsim_backend=codex", "toolsim_backend=codex on 0.0.0.0 would share your login with others: set "),
    ],
)
def test_toolsim_options_are_checked(given: str, message: str) -> None:
    """Options of toolsim are checked by the same rules as at startup, including rules for combinations of options."""
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        arguments.check_settings([given], host="0.0.0.0")
    arguments.check_settings(["toolsim_backend=codex", "toolsim_api_key=k", "flow_detail=x"], host="0.0.0.0")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("lisen_port=80", "lisen_port: no such option; did you mean listen_port?"),
        ("tolsim_log=off", "tolsim_log: no such option; did you mean toolsim_log?"),
        ("xyzzy=1", "xyzzy: no such option$"),
        ("listen_port=x", "listen_port: not an integer: x"),
    ],
)
def test_mitmproxy_options_are_checked(given: str, message: str) -> None:
    """Unknown options of mitmproxy are rejected, because mitmproxy itself silently ignores them."""
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        arguments.check_known(Options(), [given])
    arguments.check_known(Options(), ["toolsim_anything=1", "listen_port=80"])
