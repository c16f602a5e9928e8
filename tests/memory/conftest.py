"""Fixtures: a text-only backend, and in front of it a mitmdump with a store, for each API and each kind of store."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend


@pytest.fixture(scope="package")
def backend() -> Iterator[TextBackend]:
    with TextBackend() as backend:
        yield backend


@pytest.fixture(scope="package", params=[("chat", "memory"), ("responses", "sqlite")], ids="-".join)
def proxy(
    request: pytest.FixtureRequest, backend: TextBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mitmdump]:
    """A proxy with a store. Not all pairs of API and store are tested, because APIs and stores are independent."""
    api_name, kind = request.param
    store = kind if kind == "memory" else f"sqlite:{tmp_path_factory.mktemp('store') / 'store'}"
    with Mitmdump(backend.url, toolsim_backend=api_name, toolsim_store=store) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Mitmdump) -> Iterator[openai.OpenAI]:
    with connect(proxy) as client:
        yield client


def connect(proxy: Mitmdump, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=key, max_retries=0, timeout=10)
