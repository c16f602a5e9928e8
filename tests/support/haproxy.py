"""HAProxy with the published configuration (``addon/deploy/haproxy.cfg``), in front of proxies on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.mitmdump import ROOT

_SERVERS = re.compile(r"(    server \S+ \S+\n)+\Z")


@contextmanager
def haproxy(folder: Path, port: int, ports: Sequence[int]) -> Iterator[int]:
    """Run HAProxy on ``port``, in front of the proxies on ``ports``; yield HAProxy's process ID.

    The socket ``stats`` in ``folder`` serves HAProxy's statistics.
    """
    program = shutil.which("haproxy")
    if program is None:
        pytest.skip("needs haproxy (Debian: haproxy)")
    text = (ROOT / "addon" / "deploy" / "haproxy.cfg").read_text()
    servers = "".join(f"    server proxy{at} 127.0.0.1:{at}\n" for at in ports)
    text, found = _SERVERS.subn(servers, text.replace("bind :8080", f"bind 127.0.0.1:{port}"))
    assert found, "the published configuration ends with its servers"
    file = folder / "haproxy.cfg"
    file.write_text(f"global\n    stats socket {folder}/stats\n{text}")
    process = subprocess.Popen([program, "-f", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
