"""Log lines at startup, with a stub in place of the backend."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import taddons
from support.raw_backend import Answer, RawBackend
from toolsim.proxy.addon import ToolSim
from toolsim.proxy.address import Upstream
from toolsim.proxy.builtin import BuiltinBackend
from toolsim.proxy.options.models_file import ModelsFile
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.reporting.log import FIELDS
from toolsim.proxy.reporting.startup_banner import StartupBanner, ask_models, backend_url, backend_words, stored_line
from toolsim.stores.url import parse_store_url
from toolsim.version import __version__

UPSTREAM = Settings(upstream=Upstream("http", "::1", 8000, "/base/v1"))


@pytest.mark.parametrize(
    ("settings", "modes", "url"),
    [
        (Settings(), ["regular"], ""),
        (Settings(), ["reverse:http://localhost:11434"], "http://localhost:11434/v1"),
        (Settings(), ["regular", "reverse:https://api.example.com"], "https://api.example.com:443/v1"),
        (Settings(), ["reverse:tcp://localhost:1"], ""),
        (UPSTREAM, ["reverse:http://localhost:1"], "http://[::1]:8000/base/v1"),
        (replace(UPSTREAM, builtin="codex"), ["regular"], ""),
    ],
)
def test_backend_url(settings: Settings, modes: list[str], url: str) -> None:
    """The backend URL is the value of ``toolsim_upstream`` or, if it is not set, the target of mitmproxy's reverse
    mode. If the URL has no path, /v1 is used.
    """
    assert backend_url(settings, [ProxyMode.parse(mode) for mode in modes]) == url


def test_models_file_is_shown_without_keys(tmp_path: Path) -> None:
    """The startup banner shows the model names in the models file, but never a key."""
    file = tmp_path / "models.toml"
    file.write_text('[[models]]\nnames = ["haiku*", "b"]\nurl = "http://x"\nkey = "sk-1"\n')
    settings = Settings(models=ModelsFile(file, {}))
    assert backend_words(settings, "") == "the backends of models.toml (haiku*, b)"
    assert backend_words(settings, "http://y/v1") == "the backends of models.toml (haiku*, b) and http://y/v1"
    assert backend_words(Settings(), "http://y/v1") == "http://y/v1"


async def answered(status: int, body: bytes, key: str = "") -> Sequence[str] | str:
    """Request the model list from a backend that sends the given response. Return the models, or a description of the
    problem.
    """

    async def behave(answer: Answer) -> None:
        await answer.whole(body, status=status, Content_Type="application/json")

    with RawBackend() as backend, taddons.context(ToolSim()):
        backend.play(behave)
        models = await ask_models(f"{backend.url}/v1", Settings(upstream_key=key))
        [asked] = backend.asked
        assert asked.path == "/v1/models"
        assert asked.header("authorization") == (f"Bearer {key}" if key else None)
    return models


@pytest.mark.parametrize(
    ("status", "body", "key", "expected"),
    [
        (200, b'{"data": [{"id": "a"}, {"id": "b"}, 5]}', "", ["a", "b"]),
        (200, b"<html>", "", "is not JSON"),
        (401, b"{}", "", "it requires a key"),
        (401, b"{}", "k", "it rejects toolsim_upstream_key"),
        (500, b"{}", "", "it returned HTTP 500"),
    ],
)
async def test_models_or_problem_are_returned(status: int, body: bytes, key: str, expected: object) -> None:
    """Reading the model list returns the models or, if the backend's answer is unusable, a description of the
    problem.
    """
    models = await answered(status, body, key)
    assert (expected in models) if isinstance(models, str) else (models == expected)


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ({}, "URL/api has no API; is the path correct?"),
        ({"/v1/models": 200}, "URL/api has no API; did you mean URL/v1?"),
        ({"/api/v1/models": 200, "/v1/models": 200}, "URL/api has no API; did you mean URL/api/v1?"),
        ({"/models": 200}, "URL/api has no API; did you mean URL?"),
        ({"/api/chat/completions": 400, "/v1/models": 200}, []),
        ({"/api/messages": 401}, []),
    ],
)
async def test_wrong_base_path_is_corrected(pages: dict[str, int], expected: str | list[str]) -> None:
    """If the path of the base URL is wrong, the startup message suggests the correct path, provided that it can be
    found on the same server.
    """

    async def behave(answer: Answer) -> None:
        await answer.whole(b'{"data": []}', status=pages.get(answer.asked.path, 404), Content_Type="application/json")

    with RawBackend() as backend, taddons.context(ToolSim()):
        backend.play(behave)
        found = await ask_models(f"{backend.url}/api", Settings())
    assert found == (expected.replace("URL", backend.url) if isinstance(expected, str) else expected)


async def test_endless_model_list_is_not_read() -> None:
    """Only a limited amount of an endless model list is read, and a redirect is not followed."""

    async def endless(answer: Answer) -> None:
        await answer.head(Content_Type="application/json")
        for _ in range(100):
            await answer.send(b" " * 1_048_576)
        await answer.end()

    async def elsewhere(answer: Answer) -> None:
        await answer.whole(b"", status=302, Location="/other")

    with RawBackend() as backend, taddons.context(ToolSim()):
        backend.play(endless)
        assert "it does not answer" in str(await ask_models(f"{backend.url}/v1", Settings()))
        backend.play(elsewhere)
        assert "it returned HTTP 302" in str(await ask_models(f"{backend.url}/v1", Settings()))
        assert len(backend.asked) == 1


class Builtin:
    """A built-in backend with a list of models."""

    def __init__(self, models: Any) -> None:
        self._models = models

    async def models(self) -> Any:
        return await self._models()


async def greeted(models: Any, caplog: pytest.LogCaptureFixture, **options: str) -> list[tuple[str, str]]:
    """Log the startup banner, and return the level and text of each line."""
    with taddons.context(ToolSim()) as context, caplog.at_level(logging.INFO):
        context.options.update(**options)
        greeting = StartupBanner(cast(BuiltinBackend, Builtin(models)))

        async def nothing() -> None:
            return

        greeting.start(Settings(builtin="scripted"), asyncio.create_task(nothing()))
        if greeting._task is not None:
            await greeting._task
    ours = [record for record in caplog.records if record.name.startswith("toolsim")]
    return [(record.levelname, record.getMessage()) for record in ours]


async def test_models_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A log line after the startup banner lists the first few models and states the number of remaining models."""

    async def models() -> list[str]:
        return [f"m{number}" for number in range(9)]

    first, second = await greeted(models, caplog)
    assert first[1].startswith(f"toolsim {__version__} in front of a scripted model")
    assert second == ("INFO", "models: m0, m1, m2, m3, m4, m5 and 3 more")


async def test_slow_backend_causes_a_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the backend does not answer in time at startup, a warning is logged."""
    monkeypatch.setattr("toolsim.proxy.reporting.startup_banner.ASK_SECONDS", 0.01)

    async def models() -> None:
        await asyncio.sleep(60)

    assert (await greeted(models, caplog))[1] == (
        "WARNING",
        "cannot list the backend's models: no answer within 0.01 s",
    )


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("memory", "in memory, for 30 days"),
        ("sqlite:/srv/a.sqlite?days=7", "in /srv/a.sqlite, for 7 days"),
        ("redis://me:secret@host:6379/1", "in redis://host:6379/1, for 30 days"),
    ],
)
def test_store_is_disclosed_without_its_password(url: str, line: str) -> None:
    """The line about stored conversations shows where and how long they are stored, but not the store's password."""
    store = parse_store_url(url)
    assert store is not None
    assert stored_line(store) == f"stored conversations  {line}; to disable storage: --set toolsim_store="


async def test_json_banner_does_not_contact_the_backend(caplog: pytest.LogCaptureFixture) -> None:
    """With ``toolsim_log=json``, the startup banner is one line, and the backend is not contacted. With
    ``toolsim_log=off``, nothing is logged.
    """

    async def models() -> None:
        raise AssertionError

    assert len(await greeted(models, caplog, toolsim_log="json")) == 1
    assert getattr(caplog.records[-1], FIELDS) == {
        "message": "toolsim is up",
        "version": __version__,
        "backend": "scripted",
        "base_urls": [],
        "wants_key": False,
    }
    caplog.clear()
    assert await greeted(models, caplog, toolsim_log="off") == []
