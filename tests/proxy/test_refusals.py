"""Tests for refused requests. They are counted by reason and logged, but only up to a limit."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest
from support.line import Line
from support.mitmdump import Mitmdump
from support.ports import free_port
from support.raw_backend import RawBackend

KEY = {"Authorization": "Bearer k"}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "x" * 24,
}


def refused(proxy: Mitmdump) -> list[dict[str, Any]]:
    """Return the log entries for refused requests."""
    lines = [json.loads(line) for line in proxy.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("message") == "refused"]


def counts(proxy: Mitmdump, **headers: str) -> dict[str, int]:
    """Return the number of refused requests for each reason that has occurred."""
    with Line(proxy.url) as line:
        text = line.request("GET", "/toolsim/metrics", **headers).body.decode()
    found = re.findall(r'^toolsim_refused_requests_total\{reason="(\w+)"\} (\d+)$', text, re.MULTILINE)
    assert len(found) >= 8
    return {reason: int(count) for reason, count in found if int(count)}


def connect(port: int, *headers: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(
            "\r\n".join(["CONNECT 192.0.2.1:443 HTTP/1.1", "Host: 192.0.2.1:443", *headers, "", ""]).encode()
        )
        return client.recv(65536)


def test_wrong_keys_are_logged(backend: RawBackend) -> None:
    """A wrong key is logged and counted for all APIs, for other paths and for WebSockets. The correct key is neither
    logged nor counted as refused.
    """
    with Mitmdump(backend.url, toolsim_api_key="k") as proxy:
        with Line(proxy.url) as line:
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
                assert line.post(path, {}, Authorization="Bearer wrong").status == 401
            assert line.request("GET", "/elsewhere?key=query").status == 401
        with Line(proxy.url) as line:
            assert line.request("GET", "/v1/responses", **UPGRADE).status == 401
        assert counts(proxy, **KEY) == {"wrong_key": 5}
        found = refused(proxy)
        assert [entry["request"] for entry in found] == [
            *("POST /v1/chat/completions", "POST /v1/messages", "POST /v1/responses"),
            *("GET /elsewhere", "GET /v1/responses"),
        ]
        assert {(entry["reason"], entry["status"], entry["source"]) for entry in found} == {
            ("wrong_key", 401, "127.0.0.1")
        }
        assert "query" not in proxy.log()
    assert backend.asked == []


def test_foreign_hosts_and_pages_are_logged(backend: RawBackend) -> None:
    with Mitmdump(backend.url) as proxy:
        with Line(proxy.url) as line:
            assert line.request("GET", "/v1/models", Host="evil.test").status == 403
            assert line.request("GET", "/v1/models", Origin="https://evil.test").status == 403
        with Line(proxy.url) as line:
            assert line.request("GET", "/v1/chat/completions", **UPGRADE).status == 426
        assert counts(proxy) == {"foreign_host": 1, "foreign_page": 1, "websocket": 1}
        assert [entry["status"] for entry in refused(proxy)] == [403, 403, 426]


def test_refused_tunnels_are_logged() -> None:
    """If the key for a tunnel is missing, or if the proxy does not forward requests, the tunnel is refused, logged and
    counted.
    """
    with Mitmdump(toolsim_api_key="k") as proxy:
        assert b" 407 " in connect(proxy.port)
        assert [entry["request"] for entry in refused(proxy)] == ["CONNECT 192.0.2.1:443"]
        assert counts(proxy, **KEY) == {"proxy_key": 1}
    with Mitmdump(toolsim_backend="scripted") as proxy:
        proxy.wait_for("scripted backend answers")
        assert b" 403 " in connect(proxy.port)
        assert counts(proxy) == {"not_forwarded": 1}
        assert [entry["reason"] for entry in refused(proxy)] == ["not_forwarded"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_loops_are_logged(path: str) -> None:
    """If the proxy receives a request that it has sent itself, the request is logged and counted. It fails with an
    error in the format of the client's API.
    """
    port = free_port()
    options = {"toolsim_upstream": f"http://127.1:{port}", "toolsim_engine": "unknown"}
    with Mitmdump(arguments=("--listen-port", str(port)), **options) as proxy, Line(proxy.url) as line:  # type: ignore[arg-type]
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "input": "hi"}
        reply = line.post(path, body)
        assert reply.status == 508
        error = reply.json()
        assert error.get("type") == "error" if path == "/v1/messages" else error["error"]["code"] == "loop_detected"
        assert counts(proxy) == {"loop": 1}
        [entry] = refused(proxy)
        assert (entry["reason"], entry["status"]) == ("loop", 508)


def test_refusal_is_one_line_in_the_text_log(backend: RawBackend) -> None:
    """In the text log, each refused request produces a single line. mitmproxy's own two lines are omitted."""
    with Mitmdump(backend.url, toolsim_log="text", toolsim_api_key="k") as proxy:
        proxy.wait_for("backend's models")  # The last line of the startup banner.
        before = proxy.log()
        with Line(proxy.url) as line:
            for path in ("/v1/models", "/elsewhere"):
                line.request("GET", path)
        connect(proxy.port)
        found = proxy.log().removeprefix(before)
    requests = ["GET /v1/models", "GET /elsewhere", "CONNECT 192.0.2.1:443"]
    assert re.findall(r"refused (\w+ \S+)", found) == requests
    assert len(found.splitlines()) == len(requests)
