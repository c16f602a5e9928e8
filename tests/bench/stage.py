"""Shared code of the groups that measure a proxy: the backend, the proxies in front of it, requests, and CPU times."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.mitmdump import MITMDUMP, Mitmdump

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
_PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}

TOOLS = [{"type": "function", "name": "write", "parameters": _PARAMETERS}]


def request_body(api: str, model: str, *, stream: bool = True) -> bytes:
    """Return a request with one tool, so that the addon has work to do."""
    function = {"name": "write", "parameters": _PARAMETERS}
    asked: dict[str, Any] = {"model": model, "stream": stream}
    if api == "chat":
        asked |= {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": function}],
        }
    elif api == "messages":
        tool = {"name": "write", "input_schema": _PARAMETERS}
        asked |= {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1_000_000, "tools": [tool]}
    else:
        asked |= {"input": "hi", "tools": TOOLS}
    return json.dumps(asked).encode()


class Client:
    """A client with a single keep-alive connection, like real clients."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)

    def begin(self, api: str, model: str, *, stream: bool = True) -> http.client.HTTPResponse:
        body = request_body(api, model, stream=stream)
        self._connection.request("POST", PATHS[api], body, {"content-type": "application/json"})
        return self._connection.getresponse()

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        """Send any request, and return the complete body of the answer."""
        self._connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
        return self._connection.getresponse().read()

    def ask(self, api: str, model: str, *, stream: bool = True) -> bytes:
        """Request a turn, and return the complete body of the answer."""
        answer = self.begin(api, model, stream=stream)
        body = answer.read()
        assert answer.status == 200, body[:500]
        return body


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process in seconds, with nanosecond resolution. Requires Linux."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@contextmanager
def backends() -> Iterator[tuple[str, str]]:
    """Run the backend, and yield its two URLs. The second URL uses TLS."""
    process = subprocess.Popen([sys.executable, "-m", "bench.backend"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        plain, tls = map(int, process.stdout.readline().split())
        yield f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{tls}"
    finally:
        process.terminate()
        process.wait(10)


_BARE: dict[str, Any] = {"script": None, "stream_large_bodies": "1"}
# The certificate of the TLS backend is self-signed.
_TRUSTING: dict[str, Any] = {"ssl_insecure": True}


class Proxies:
    """The proxies in front of one backend. Each proxy starts on first use and runs until the context ends."""

    def __init__(self, url: str, url_over_tls: str, stack: ExitStack) -> None:
        self.url = url
        self._url_over_tls = url_over_tls
        self._stack = stack
        self._running: dict[str, Mitmdump] = {}

    def bare(self, *, tls: bool = False) -> Mitmdump:
        """Return a mitmdump that streams answers, without the addon. ``tls``: whether the backend uses TLS."""
        return self._get("bare", tls, **_BARE)

    def toolsim(self, backend: str = "auto", arguments: str = "buffered", *, tls: bool = False) -> Mitmdump:
        options = {"toolsim_backend": backend, "toolsim_stream_arguments": arguments}
        return self._get(f"{backend} {arguments}", tls, **options)

    def fresh(self, backend: str = "auto", **options: Any) -> Mitmdump:
        """Return a proxy for a single measurement. The caller must start it."""
        return Mitmdump(self.url, command=MITMDUMP, toolsim_backend=backend, **options)

    def fresh_bare(self) -> Mitmdump:
        """Return a proxy without the addon for a single measurement. The caller must start it."""
        return Mitmdump(self.url, command=MITMDUMP, **_BARE)

    def _get(self, name: str, tls: bool, **options: Any) -> Mitmdump:
        url, more = (self._url_over_tls, _TRUSTING) if tls else (self.url, {})
        name = f"{name} {url}"
        if name not in self._running:
            self._running[name] = self._stack.enter_context(Mitmdump(url, command=MITMDUMP, **options, **more))
        return self._running[name]


@contextmanager
def proxies() -> Iterator[Proxies]:
    with ExitStack() as stack:
        yield Proxies(*stack.enter_context(backends()), stack)
