"""Tests for the size of the context window, and for errors about prompts that exceed it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from typing import Any

import pytest
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend
from toolsim.cli.context_window import context_window

FIELDS = {"context_length", "context_window", "max_model_len"}
MODELS = {"object": "list", "data": [{"id": "m", "object": "model"}]}
SERVERS: dict[str, tuple[dict[str, Any], int | None]] = {
    "llama.cpp": (
        {"/props": {"default_generation_settings": {"n_ctx": 8192}, "total_slots": 2}, "/v1/models": MODELS},
        8192,
    ),
    "vllm": (
        {"/version": {"version": "0.11.0"}, "/v1/models": {"data": [{"id": "m", "max_model_len": 32768}]}},
        32768,
    ),
    "ollama, loaded": (
        {"/api/ps": {"models": [{"name": "m", "context_length": 4096}]}, "/v1/models": MODELS},
        4096,
    ),
    "ollama": (
        {"/api/ps": {"models": []}, "/api/show": {"model_info": {"qwen3.context_length": 40960}}, "/v1/models": MODELS},
        40960,
    ),
    "lmstudio": (
        {"/api/v0/models": {"object": "list", "data": [{"id": "m", "loaded_context_length": 16384}]}}
        | {"/v1/models": MODELS},
        16384,
    ),
    "silent": ({"/v1/models": MODELS}, None),
}


@contextmanager
def server(pages: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Serve the given pages. Yield the URL of the server, and a list to which it adds the requested paths."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("content-length") or 0))
            body = json.dumps(pages.get(self.path, {"detail": "Not Found"})).encode()
            self.send_response(200 if self.path in pages else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{httpd.server_port}", asked
        finally:
            httpd.shutdown()
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_model_list_has_the_context_window(kind: str) -> None:
    """The model list contains the size of the context window in all common fields. This also applies to the list in
    Anthropic's format.
    """
    pages, window = SERVERS[kind]
    with server(pages) as (url, asked), Mitmdump(url) as proxy, Line(proxy.url) as line:
        (model,) = line.request("GET", "/v1/models").json()["data"]
        before = len(asked)
        assert {model.get(field) for field in FIELDS} == {window}
        (shown,) = line.request("GET", "/v1/models", anthropic_version="2023-06-01").json()["data"]
        assert shown.get("max_input_tokens") == window
        assert len(asked) == before + 1, asked
        assert context_window(f"{proxy.url}/v1", "m") == window
        assert context_window(f"{url}/v1", "m") == window
        assert context_window(f"{url}/v1/", "another") == (window if kind in ("llama.cpp", "ollama") else None)
    assert context_window("http://127.0.0.1:9/v1", "m") is None


TOOL = {"type": "object", "properties": {}}
ASKED: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": TOOL}}],
    },
    "responses": {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": TOOL}]},
    "messages": {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 9,
        "tools": [{"name": "f", "input_schema": TOOL}],
    },
}
ERRORS = {
    "llama.cpp": (
        400,
        {"error": {"code": 400, "message": "exceeds the context", "type": "exceed_context_size_error", "n_ctx": 9}},
    ),
    "vllm": (
        400,
        {"object": "error", "message": "Input length (9) exceeds model's maximum context length (8).", "code": 400},
    ),
    "lmstudio": (
        500,
        {"error": "The number of tokens to keep from the initial prompt is greater than the context length."},
    ),
    "anthropic": (
        400,
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"},
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"toolsim_retry": 1}], ids=["one turn", "rounds"])
@pytest.mark.parametrize("served", ["chat", "responses", "messages"])
def test_too_long_prompt_has_an_error_code(served: str, options: dict[str, Any]) -> None:
    """For each pair of APIs, if a prompt is too long, the client receives the error code that its API defines for this
    case.
    """
    with RawBackend() as backend, Mitmdump(backend.url, toolsim_backend=served, **options) as proxy:
        for name, (status, error) in ERRORS.items():

            async def refuse(answer: Answer, status: int = status, error: Any = error) -> None:
                body = json.dumps(error).encode()
                await answer.head(status, len(body), Content_Type="application/json")
                await answer.send(body)

            backend.play(refuse)
            for api, body in ASKED.items():
                for stream, has_tools in product((False, True), (False, True)):
                    asked = {"model": "m", "stream": stream, **body}
                    if not has_tools:
                        del asked["tools"]
                    with Line(proxy.url) as line:
                        reply = line.post(f"/v1/{api}", asked)
                    text = reply.body.decode()
                    if reply.status == 200:
                        assert stream
                    else:
                        assert reply.status == 400, (name, api, text)
                    if api == "messages":
                        assert '"message": "prompt is too long: ' in text or '"message":"prompt is too long: ' in text
                        assert "invalid_request_error" in text
                    else:
                        assert "context_length_exceeded" in text, (name, api, text)
