"""Tests that compare attribute names and values with the OpenTelemetry package for semantic conventions."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import opentelemetry.semconv.attributes as stable
import pytest
from opentelemetry.semconv._incubating import attributes as incubating
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv.schemas import Schemas
from toolsim.core.report import Report
from toolsim.mcp import outcome
from toolsim.mcp.outcome import outcome_of
from toolsim.mcp.servers import Server
from toolsim.otel import conventions, export
from toolsim.proxy.backend_registry import Backend, Root
from toolsim.proxy.exchange import Exchange
from toolsim.proxy.options.settings import Limits
from toolsim.wire.mcp_items import McpCall

OWN = "toolsim."
NAME = re.compile(r"[a-z_]+(?:\.[a-z_]+)+")


def published() -> set[str]:
    """Return the names of all attributes that the OpenTelemetry package for semantic conventions defines."""
    found: set[str] = set()
    for package in (stable, incubating):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            found |= {value for value in vars(importlib.import_module(module.name)).values() if isinstance(value, str)}
    return found


def used() -> Iterator[str]:
    """Yield the strings in ``conventions.py`` that look like attribute names."""
    for node in ast.walk(ast.parse(Path(conventions.__file__).read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
            yield node.value


def test_every_name_is_published_or_defined_by_toolsim() -> None:
    hosts = {*conventions._PROVIDERS, *conventions._PROVIDERS.values(), *conventions._AZURE}
    names = set(used()) - hosts - {"azure.ai.openai"}
    ours = {name for name in names if name.startswith(OWN)}
    assert len(names - ours) > 25
    assert names - ours - published() == set()
    # Attributes that only toolsim defines are named after fields of the report, except ``mcp.server``.
    fields = {name.removeprefix(OWN) for name in ours} - {"mcp.server"}
    assert fields == {"calls", "rounds", "round", "usage_estimated"}
    assert all(hasattr(Report(), field) for field in fields | set(conventions._FINDINGS))


def test_values_match_the_conventions_package() -> None:
    """All operations, providers and output types are defined by the OpenTelemetry package for semantic conventions."""
    operations = {each.value for each in gen_ai.GenAiOperationNameValues}
    assert {"chat", "execute_tool"} <= operations
    known = {each.value for each in gen_ai.GenAiProviderNameValues}
    assert {*conventions._PROVIDERS.values(), "azure.ai.openai", "openai"} <= known
    assert "json" in {each.value for each in gen_ai.GenAiOutputTypeValues}
    assert export.SCHEMA in {each.value for each in Schemas}


def exchange(host: str = "10.0.0.1", engine: Any = None, *, builtin: bool = False) -> Exchange:
    backend = Backend(Root("http", host, 80), engine=engine, is_builtin=builtin)
    return Exchange(Report(), client_id="c", cors={}, limits=Limits(), backend=backend)


@pytest.mark.parametrize(
    ("host", "engine", "provider"),
    [
        ("10.0.0.1", None, "openai"),
        ("10.0.0.1", "unknown", "openai"),
        ("10.0.0.1", "vllm", "vllm"),
        ("api.openai.com", "unknown", "openai"),
        ("api.groq.com", "unknown", "groq"),
        ("mine.openai.azure.com", None, "azure.ai.openai"),
    ],
)
def test_providers(host: str, engine: Any, provider: str) -> None:
    assert conventions.provider(exchange(host, engine), host) == provider
    assert conventions.provider(exchange(host, engine, builtin=True), host) == "toolsim"


CALL = McpCall("mcp_1", "files", "read_file", "{}")


def test_remote_server_is_identified_by_host_and_port() -> None:
    """A span identifies a remote MCP server only by host and port, because other parts of its URL can contain
    secrets.
    """
    local = conventions.tool_began(Server("files", ("npx",)), CALL)
    assert local["network.transport"] == "pipe"
    assert "server.address" not in local
    remote = conventions.tool_began(Server("files", url="https://user:pass@docs.example/mcp?key=secret"), CALL)
    assert (remote["network.transport"], remote["server.address"], remote["server.port"]) == (
        "tcp",
        "docs.example",
        443,
    )
    assert "secret" not in str(remote)
    assert "pass" not in str(remote)


@pytest.mark.parametrize(
    ("came", "found"),
    [
        (outcome.ToolOutcome("text"), {}),
        (outcome_of([{"type": "text", "text": "no"}], None, is_error=True, limit=9), {"error.type": "tool_error"}),
        (outcome.failed("gone"), {"error.type": "SERVER_FAILED"}),
        (outcome.failed("large", outcome.TOO_LARGE), {"error.type": "OUTPUT_TOO_LARGE"}),
        (
            outcome.failed("what?", number=-32602),
            {"error.type": "-32602", "rpc.response.status_code": "-32602"},
        ),
    ],
)
def test_call_outcomes(came: outcome.ToolOutcome, found: dict[str, str]) -> None:
    assert conventions.tool_ended(came) == found


CHUNK = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"real","choices":[]}\n\n'
CREATED = (
    b'event: response.created\r\ndata: {"type":"response.created","sequence_number":0,"response":'
    b'{"id":"resp_1","object":"response","model":"real","output":[],"instructions":"{\\"model\\":\\"no\\"}"}}\r\n\r\n'
)
STARTED = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","model":"real"}}\n\n'
)
WHOLE = (
    b'{"id":"chatcmpl-1","object":"chat.completion","model":"real",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
)


@pytest.mark.parametrize(
    ("answer", "id"),
    [
        (CHUNK + b"data: [DONE]\n\n", "chatcmpl-1"),
        (CREATED + b"data: [DONE]\r\n\r\n", "resp_1"),
        (b"\n" + WHOLE, "chatcmpl-1"),
        (STARTED, "msg_1"),
    ],
)
def test_response_model_and_id_are_read(answer: bytes, id: str) -> None:
    found = conventions.chat_ended(Report(), answer)
    assert found == {"gen_ai.response.model": "real", "gen_ai.response.id": id}


@pytest.mark.parametrize("answer", [b"", b"data: {", b"no", b"{", b": hi\n\n", b"data: [1]\n\n", b"[]", b"\xff"])
def test_unreadable_answer_adds_no_attributes(answer: bytes) -> None:
    """If an answer cannot be parsed, no attributes are added to the span, and no exception is raised."""
    assert conventions.chat_ended(Report(), answer) == {}


def test_long_answer_is_not_parsed() -> None:
    """A long non-streamed answer is not parsed, so the span does not contain its ID. Long names and lists are
    shortened.
    """
    long = WHOLE.replace(b'"hi"', b'"' + b"x" * 70_000 + b'"')
    assert conventions.chat_ended(Report(), long) == {}
    found = conventions.chat_ended(Report(repairs=["X" * 500] * 100), b"")
    assert isinstance(found["toolsim.repairs"], list)
    assert (len(found["toolsim.repairs"]), len(found["toolsim.repairs"][0])) == (64, 128)
    assert len(conventions.chat_name("m" * 500)) == len("chat ") + 128


@pytest.mark.parametrize(
    ("error", "status", "found"),
    [
        (None, 200, ""),
        (None, 404, "404"),
        (None, None, "aborted"),
        ("backend_timeout", None, "backend_timeout"),
        ("invalid_api_key", 401, "invalid_api_key"),
        ("the words of somebody", 500, "_OTHER"),
        ("x" * 500, 500, "_OTHER"),
    ],
)
def test_error_code_must_look_like_a_code(error: str | None, status: int | None, found: str) -> None:
    """A span contains the error code from a backend only if it looks like an identifier. Otherwise, it contains
    ``_OTHER``.
    """
    assert conventions.failure(Report(error=error), status) == found


def test_only_backend_token_counts_are_recorded() -> None:
    report = Report(tool_cutoff="first call", profile="mine")
    assert conventions.chat_ended(report, b"") == {"toolsim.tool_cutoff": "first call", "toolsim.profile": "mine"}
    report = Report(tokens={"input": 9, "output": 3, "total": 12, "cached": 0, "reasoning": 2}, finish="length")
    assert conventions.chat_ended(report, b"") == {
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "gen_ai.response.finish_reasons": ["length"],
    }
