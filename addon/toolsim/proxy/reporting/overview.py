"""The page at ``/toolsim/``, which shows the backend, the base URLs for clients, and the outcomes of recent turns.

For people, the page is HTML: one file without scripts or external resources, in which all text from clients, models and
servers is escaped. Programs that accept JSON receive the same data as a JSON object. If a key is set, the response to a
request without the key contains only toolsim's name, the base URLs, and the information that a key is required.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from mitmproxy.http import HTTPFlow, Response

from toolsim.proxy.address import url_host
from toolsim.proxy.builtin import BuiltinBackend
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.reporting.connect_errors import explain
from toolsim.proxy.reporting.outcome import Reports
from toolsim.proxy.reporting.startup_banner import ASK_SECONDS, ask_models, backend_url, backend_words
from toolsim.proxy.reporting.summary import printable
from toolsim.version import __version__

NAME = "toolsim"
_FRESH_SECONDS = 5.0
_MAX_MODELS = 200
_MAX_CHARS = 200
_JSON = "application/json"
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # Caches have to distinguish HTML and JSON, because they are different representations of the same page.
    "vary": "accept",
}
_STYLE = """\
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin: 2rem 0 .5rem; font-size: 1.1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.5rem; margin: 0; } dd { margin: 0; }
code, pre, li { font-family: ui-monospace, monospace; font-size: .9rem; overflow-wrap: anywhere; }
pre { padding: .75rem; border: 1px solid #8886; border-radius: .4rem; white-space: pre-wrap; }
ol { list-style: none; padding: 0; } li { padding: .15rem 0; border-bottom: 1px solid #8883; }
"""


@dataclass(slots=True)
class Overview:
    """Creates the overview page according to the settings."""

    settings: Settings
    builtin: BuiltinBackend
    reports: Reports
    _asked_at: float = -_FRESH_SECONDS
    _models: asyncio.Task[Sequence[str] | str] | None = None

    async def full(self, flow: HTTPFlow) -> Response:
        """Return the overview page for a client with full access."""
        facts = self._public(flow)
        url = backend_url(self.settings, [flow.client_conn.proxy_mode])
        backend = backend_words(self.settings, url)
        models = await self._ask(url)
        found: dict[str, Any] = {"version": __version__, "backend": backend, "backend_url": url}
        named = self.settings.models.current() if self.settings.models is not None else ()
        names = [name for entry in named for name in entry.literal_names]
        found |= {"models": names, "problem": models} if isinstance(models, str) else {"models": [*names, *models]}
        return _response(flow, facts | found | {"turns": self.reports.recent_lines()})

    def public(self, flow: HTTPFlow) -> Response:
        """Return the overview page for a client without the key."""
        return _response(flow, self._public(flow))

    def _public(self, flow: HTTPFlow) -> dict[str, Any]:
        origin = _origin(flow)
        urls = {"openai": f"{origin}/v1", "anthropic": origin}
        return {"name": NAME, "base_urls": urls, "requires_key": bool(self.settings.api_key)}

    async def _ask(self, url: str) -> Sequence[str] | str:
        """Return the backend's models, or a description of its problem. The result is cached for a few seconds."""
        now = time.monotonic()
        if self._models is None or now - self._asked_at > _FRESH_SECONDS:
            self._asked_at = now
            self._models = asyncio.create_task(self._find_models(url))
        # The query is shielded, because other clients might still be waiting for it when one client disconnects.
        return await asyncio.shield(self._models)

    async def _find_models(self, url: str) -> Sequence[str] | str:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                found = await (self.builtin.models() if self.settings.builtin else ask_models(url, self.settings))
        except (TimeoutError, OSError) as problem:
            return printable(explain(problem, ASK_SECONDS), _MAX_CHARS)
        return found if isinstance(found, str) else [printable(name, _MAX_CHARS) for name in found[:_MAX_MODELS]]


def _origin(flow: HTTPFlow) -> str:
    """Return the listener's URL, with the host that the client used to reach it."""
    sock = flow.client_conn.sockname
    host = flow.request.host_header
    if host and host.isascii() and host.isprintable() and not set(host) & set(" /\\\"'<>"):
        return f"http://{host}"
    return f"http://{url_host(str(sock[0]))}:{sock[1]}"


def _response(flow: HTTPFlow, facts: Mapping[str, Any]) -> Response:
    accept = flow.request.headers.get("accept", "")
    if _JSON in accept and "text/html" not in accept:
        return Response.make(200, json.dumps(facts), _HEADERS | {"content-type": _JSON})
    return Response.make(200, _html(facts), _HEADERS | {"content-type": "text/html; charset=utf-8"})


def _html(facts: Mapping[str, Any]) -> str:
    base, anthropic = facts["base_urls"]["openai"], facts["base_urls"]["anthropic"]
    key = "toolsim_api_key" if facts["requires_key"] else "any"
    rows = [
        ("Chat Completions", _code(base)),
        ("Responses", _code(base)),
        ("Messages (Anthropic)", _code(anthropic)),
        ("API key", escape(key)),
    ]
    parts = [f"<h1>{NAME}</h1>"]
    if "version" in facts:
        parts.append(
            f"<p>Version {escape(facts['version'])}, in front of {escape(facts['backend'] or 'no backend')}</p>"
        )
    parts += ["<h2>Base URLs for clients</h2>", _list(rows), "<h2>Try it</h2>"]
    models = facts.get("models") or ["any"]
    parts.append(f"<pre>{escape(_snippet(base, models[0], requires_key=facts['requires_key']))}</pre>")
    if "models" in facts:
        names = ", ".join(_code(name) for name in facts["models"]) or escape(facts.get("problem", "none listed"))
        parts += ["<h2>Models</h2>", f"<p>{names}</p>", "<h2>Last turns</h2>"]
        lines = "".join(f"<li>{escape(line)}</li>" for line in facts["turns"])
        parts.append(f"<ol>{lines}</ol>" if lines else "<p>None yet.</p>")
    else:
        parts.append("<p>With the key, this page also shows the backend, its models and the last turns.</p>")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{NAME}</title>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{"".join(parts)}</body></html>'
    )


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _list(rows: Sequence[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{value}</dd>' for name, value in rows)}</dl>"


def _snippet(base: str, model: str, *, requires_key: bool) -> str:
    key = " -H 'authorization: Bearer YOUR_KEY'" if requires_key else ""
    # Single quotes are escaped for the shell.
    body = json.dumps({"model": model, "input": "Hello"}).replace("'", "'\\''")
    return f"curl -s {base}/responses{key} -H 'content-type: {_JSON}' -d '{body}'"
