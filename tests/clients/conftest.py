"""Fixtures for real clients: a text-only backend, and a real mitmdump in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clients.cases import Stage
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend


@pytest.fixture(scope="session")
def text_backend() -> Iterator[TextBackend]:
    """The backend that all clients share; each test sets its own script."""
    with TextBackend() as backend:
        yield backend


@pytest.fixture(scope="session", params=["responses", "chat"], ids=lambda api_name: f"over_{api_name}")
def stage(request: pytest.FixtureRequest, text_backend: TextBackend) -> Iterator[Stage]:
    """A mitmdump that uses one API of the backend. All clients share it."""
    with Mitmdump(text_backend.url, toolsim_backend=request.param) as proxy:
        yield Stage(text_backend, f"{proxy.url}/v1", request.param)


@pytest.fixture(scope="session")
def bare_stage(text_backend: TextBackend) -> Iterator[Stage]:
    """The same backend behind a mitmdump without the addon, where no client can complete a tool loop."""
    with Mitmdump(text_backend.url, script=None) as proxy:
        yield Stage(text_backend, f"{proxy.url}/v1", "none")
