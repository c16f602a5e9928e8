"""Tests for a full disk: turns are answered, failures are reported, and the store recovers once there is space."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from memory.conftest import connect
from memory.test_references import ask
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says

pytestmark = pytest.mark.slow

LIMIT = 200_000
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, resource.RLIM_INFINITY)); "
COMMAND = (sys.executable, "-c", f"{LIMITED}from mitmproxy.tools.main import mitmdump; mitmdump()")
LONG = "word " * 50_000
"""Text that exceeds the file size limit, or the free space on a full disk."""


@dataclass
class Disk:
    """The disk that contains the store. ``command``: the command for a mitmdump whose files are limited, if necessary.

    ``fill`` fills the disk, and ``free`` makes space.
    """

    folder: Path
    command: tuple[str, ...] | None
    fill: Callable[[], None]
    free: Callable[[Mitmdump], None]


@contextmanager
def mounted(folder: Path) -> Iterator[Disk]:
    """Yield a disk that is a small file system. It must already be mounted."""
    filler = folder / "filler"

    def fill() -> None:
        with filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1024))
            except OSError:
                return

    try:
        yield Disk(folder, None, fill, lambda _: filler.unlink())
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def limited(folder: Path) -> Iterator[Disk]:
    """Yield a disk that is simulated by a file size limit for mitmdump. Root privileges are not required."""
    if not hasattr(resource, "prlimit"):
        pytest.skip("the size of another process's files cannot be limited here")

    def free(proxy: Mitmdump) -> None:
        resource.prlimit(proxy.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    yield Disk(folder, COMMAND, lambda: None, free)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk that can be filled: a small file system if this machine allows mounts; otherwise, a file size limit."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
    with (mounted if is_mounted else limited)(folder) as disk:
        yield disk


def proxy_on(disk: Disk, backend: TextBackend) -> Mitmdump:
    options: dict[str, Any] = {"toolsim_backend": "chat", "toolsim_store": f"sqlite:{disk.folder / 'store'}"}
    return Mitmdump(backend.url, command=disk.command, **options)


def refused(client: openai.OpenAI, request: Callable[[], object], words: str) -> None:
    with pytest.raises(openai.InternalServerError, match=words) as caught:
        request()
    assert (caught.value.status_code, caught.value.code) == (503, "store_unavailable")


def test_full_disk(disk: Disk, backend: TextBackend) -> None:
    """A turn that cannot be stored is answered and marked as not stored; only turns in a conversation fail with 503.

    Stored answers can still be continued. Once there is space, turns are stored again.
    """
    backend.play(lambda exchange: says("Fine."))
    with proxy_on(disk, backend) as proxy, connect(proxy) as client:
        first = ask(client, False, input="Hello")
        conversation = client.conversations.create()
        assert first.store is True
        disk.fill()
        assert [ask(client, stream, input=LONG).store for stream in (False, True)] == [False, False]
        for stream in False, True:
            again = ask(client, stream, input=LONG, previous_response_id=first.id)
            assert (again.output_text, again.store) == ("Fine.", False)
            assert "Hello" in [text for _, text in backend.exchanges[-1].transcript]
        refused(client, lambda: ask(client, False, input=LONG, conversation=conversation.id), "could not be added")
        items: Any = [{"role": "user", "content": LONG}]
        refused(client, lambda: client.conversations.items.create(conversation.id, items=items), "not available")
        assert client.responses.retrieve(first.id).output_text == "Fine."
        proxy.wait_for("the store cannot write: .*(full|disk|too large)")
        disk.free(proxy)
        after = ask(client, False, input=LONG, conversation=conversation.id)
        assert after.store is True
        assert len(list(client.conversations.items.list(conversation.id))) == 2
        proxy.wait_for("the store can write again")
    with proxy_on(disk, backend) as proxy, connect(proxy) as client:
        if disk.command:
            disk.free(proxy)
        assert [client.responses.retrieve(id).store for id in (first.id, after.id)] == [True, True]
        assert ask(client, True, input="More", previous_response_id=after.id).store is True
