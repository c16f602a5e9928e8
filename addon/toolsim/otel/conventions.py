"""Names and values of the semantic conventions for generative AI and MCP (both in development), and for HTTP (stable).

The tests check the names against the package ``opentelemetry-semantic-conventions``. Its names for generative AI are in
a private module, so they are repeated here. The names of other attributes consist of ``toolsim.`` and the name of a
field of the report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from mitmproxy.http import HTTPFlow

from toolsim.core.report import Report, loggable_name
from toolsim.mcp.outcome import FAILED, ToolOutcome
from toolsim.mcp.servers import Server
from toolsim.proxy.exchange import Exchange
from toolsim.proxy.route import prefix
from toolsim.wire.hosted_items import ServedCall
from toolsim.wire.json_codec import parse_object
from toolsim.wire.json_fields import string

Attributes = dict[str, str | int | bool | list[str]]

ERROR = "error.type"
STATUS = "http.response.status_code"
INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
ARGUMENTS, RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"

MAX_NAME = 128
"""Maximum length of a name, in characters. A limit is needed because clients, models and servers can choose any name.
"""
_MAX_NAMES = 64
_MAX_READ = 64 * 1024
"""Maximum number of bytes of an answer that are searched for the answer's ID.

These bytes contain the first event of a stream, or all of a short answer.
"""

ABORTED, OTHER = "aborted", "_OTHER"
"""The error classes for a request whose client has disconnected, and for an error without a suitable name.

The conventions define ``_OTHER``.
"""

_TOKENS = {
    "input": "gen_ai.usage.input_tokens",
    "output": "gen_ai.usage.output_tokens",
    "cached": "gen_ai.usage.cache_read.input_tokens",
    "reasoning": "gen_ai.usage.reasoning.output_tokens",
}
# Fields of the report that are useful for searching spans.
_FINDINGS = ("parse_failures", "strict_failures", "repairs", "untagged", "warnings", "dropped_calls", "retries")

# The conventions name some providers. Any other provider is named after its engine or API.
_PROVIDERS = {
    "api.anthropic.com": "anthropic",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
}
_AZURE = (".openai.azure.com", ".cognitiveservices.azure.com")


def clipped(name: str) -> str:
    """Return a name, truncated to ``MAX_NAME`` characters."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


# -- a client's turn: HTTP --


def turn_name(flow: HTTPFlow) -> str:
    """Return the span name of a client's turn, which consists of the method and the route."""
    return f"{flow.request.method} {_route(flow)}"


def turn_began(flow: HTTPFlow, *, is_websocket: bool) -> Attributes:
    """Return the span attributes that are known when the headers of a client's request have arrived.

    The path attribute contains only the path of the API, since a prefix or the query may contain a key.
    """
    request, client = flow.request, flow.client_conn
    protocol, _, version = request.http_version.partition("/")
    found: Attributes = {
        "http.request.method": request.method,
        "http.route": _route(flow),
        "url.path": _route(flow),
        "url.scheme": "https" if client.tls else "http",
        "network.protocol.name": "websocket" if is_websocket else protocol.lower(),
    }
    if version and not is_websocket:
        found["network.protocol.version"] = version.removesuffix(".0") if version == "2.0" else version
    if client.sockname:
        found |= {"server.address": client.sockname[0], "server.port": client.sockname[1]}
    if agent := request.headers.get("user-agent"):
        found["user_agent.original"] = clipped(agent)
    return found


def turn_ended(report: Report, status: int | None) -> Attributes:
    """Return the attributes of a finished client turn. ``status`` is None if the client received no answer."""
    found: Attributes = {STATUS: status} if status is not None else {}
    if report.calls:
        found["toolsim.calls"] = _names(report.calls)
    if report.rounds:
        found["toolsim.rounds"] = report.rounds
    return found


def _route(flow: HTTPFlow) -> str:
    path = flow.request.path
    return "/v1" + path.partition("?")[0].rstrip("/").removeprefix(prefix(path))


# -- a request to the model --


def chat_name(model: str) -> str:
    """Return the span name of a request to the model."""
    return f"chat {clipped(model)}".rstrip()


def chat_began(flow: HTTPFlow, exchange: Exchange, model: str) -> Attributes:
    """Return the span attributes that are known when a request to the model is about to be sent."""
    plan, request = exchange.plan, flow.request
    found: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider(exchange, request.host)}
    if model:
        found["gen_ai.request.model"] = clipped(model)
    if plan is not None and plan.stream:
        found["gen_ai.request.stream"] = True
    if plan is not None and plan.choices != 1:
        found["gen_ai.request.choice.count"] = plan.choices
    if plan is not None and plan.answer_format is not None:
        found["gen_ai.output.type"] = "json"
    # A built-in backend is part of this process, so its loopback port is irrelevant.
    if not exchange.backend.is_builtin:
        found |= {"server.address": request.host, "server.port": request.port}
    if exchange.report.round:
        found["toolsim.round"] = exchange.report.round
    return found


def provider(exchange: Exchange, host: str) -> str:
    """Return the model's provider, determined from the host or the engine."""
    if exchange.backend.is_builtin:
        return "toolsim"
    if host.endswith(_AZURE):
        return "azure.ai.openai"
    engine = exchange.backend.engine
    return _PROVIDERS.get(host) or (engine if engine not in (None, "unknown") else "openai")


def chat_ended(report: Report, answer: bytes) -> Attributes:
    """Return the attributes of a request to the model whose answer has ended.

    ``answer`` is the recorded part of the backend's answer.
    """
    found: Attributes = {_TOKENS[kind]: count for kind, count in report.tokens.items() if kind in _TOKENS and count}
    if report.tokens and report.usage_estimated:
        found["toolsim.usage_estimated"] = True
    if report.finish:
        found["gen_ai.response.finish_reasons"] = [report.finish]
    found |= _answered(answer)
    for field in _FINDINGS:
        if entries := getattr(report, field):
            found[f"toolsim.{field}"] = _names(entries)
    for field in ("tool_cutoff", "profile"):
        if value := getattr(report, field):
            found[f"toolsim.{field}"] = clipped(value)
    return found


def _answered(answer: bytes) -> Attributes:
    """Return the attributes for the ID of a backend's answer, and for the model that the answer names."""
    head = answer
    if not answer[:64].lstrip().startswith(b"{"):
        # In a stream, the first event contains both the ID and the model.
        end = re.search(rb"\r?\n\r?\n", answer[:_MAX_READ])
        head = answer[: end.end()] if end else b""
    if len(head) > _MAX_READ:
        return {}
    body = parse_object(head[head.find(b"{") :].rstrip()) or {}
    # In some APIs, the ID and the model are in a nested object of the first event.
    inner = next((body[key] for key in ("response", "message") if isinstance(body.get(key), Mapping)), body)
    named = {"gen_ai.response.id": string(inner.get("id")), "gen_ai.response.model": string(inner.get("model"))}
    return {name: clipped(value) for name, value in named.items() if value}


def failure(report: Report, status: int | None) -> str:
    """Return the error class of a turn (the error code, or else the HTTP status), or "" if there was no error."""
    if report.error:
        # A code from the backend may be any text, so only plain names are used.
        return OTHER if loggable_name(report.error) != report.error else report.error
    if status is None:
        return ABORTED
    return str(status) if status >= 400 else ""


# -- a call to an MCP tool --


def tool_name(call: ServedCall) -> str:
    """Return the span name of a call to an MCP tool."""
    return f"execute_tool {clipped(call.name)}"


def tool_began(server: Server, call: ServedCall) -> Attributes:
    """Return the attributes of a tool call that is about to be made."""
    found: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": clipped(call.name),
        "gen_ai.tool.type": "extension",
        "gen_ai.tool.call.id": call.id,
        "mcp.method.name": "tools/call",
        "network.transport": "pipe" if server.command else "tcp",
        "toolsim.mcp.server": server.label,
    }
    if server.url:
        parts = urlsplit(server.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        found |= {"network.protocol.name": "http", "server.address": parts.hostname or "", "server.port": port}
    return found


def tool_ended(outcome: ToolOutcome) -> Attributes:
    """Return the attributes of a finished tool call. ``error.type`` is included only if the call failed."""
    if not outcome.code:
        return {}
    if outcome.code == FAILED:
        return {ERROR: "tool_error"}
    number: Any = (outcome.error or {}).get("code")
    if isinstance(number, int) and number != -32000:
        return {ERROR: str(number), "rpc.response.status_code": str(number)}
    return {ERROR: outcome.code}


def _names(entries: list[str]) -> list[str]:
    return [clipped(entry) for entry in entries[:_MAX_NAMES]]
