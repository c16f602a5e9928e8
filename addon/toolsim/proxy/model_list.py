"""The model list of a proxy with several backends (``toolsim_models``).

The list contains the names in the models file that have no wildcards. It also contains the models in each backend's own
list, if a request with the model's name would be sent to that backend under that name. This is the case if no earlier
entry of the file matches the name, and the backend's entry does not change the name. The default backend adds the
models that match no entry. Backends are queried in parallel for at most ``LIST_SECONDS``. A backend that does not
answer in time adds no models.

Each backend receives the key that it would receive for a turn, and no other headers from the client except ``Via``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from mitmproxy.http import Headers, HTTPFlow, Response

from toolsim.proxy import route
from toolsim.proxy.access import KEY_HEADERS, Incoming
from toolsim.proxy.backend_registry import Backend, BackendRegistry, Root, page_client, page_request
from toolsim.proxy.builtin import BuiltinBackend
from toolsim.proxy.head import authorize, error_response, for_backend
from toolsim.proxy.options.models_file import ModelEntry, entry_for
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.windows import with_windows
from toolsim.wire.api import Api
from toolsim.wire.apis import APIS, CHAT, api_of_headers
from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.json_fields import mappings, string

LIST_SECONDS = 2.0
"""Maximum time, in seconds, that a client waits for backends that do not answer."""

_KEYS = tuple(name.encode() for name in KEY_HEADERS)

Model = dict[str, Any]
"""A model in OpenAI's format, including any fields added by its backend."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The URL of a backend's model list, and the header fields of the request for the list."""

    url: str
    fields: tuple[tuple[bytes, bytes], ...]
    backend: Backend


@dataclass(frozen=True, slots=True)
class ModelList:
    """Answers requests for the model list, or for a single model in the list, according to the settings."""

    settings: Settings
    builtin: BuiltinBackend
    known: BackendRegistry

    async def answer(self, flow: HTTPFlow, incoming: Incoming, default: route.Default) -> Response:
        """Return the response to a request. ``default`` is the route of requests for models that match no entry."""
        entries = self.settings.models.current() if self.settings.models is not None else ()
        client = api_of_headers(incoming.headers) or CHAT
        found = await self._models(flow, incoming, client, entries, default)
        document: Model = {"object": "list", "data": found}
        if name := unquote(route.endpoint(flow.request.path).removeprefix(route.MODELS).lstrip("/")):
            one = next((model for model in found if model["id"] == name), None)
            if one is None and entry_for(entries, name) is None:
                response = error_response(route.no_model(entries, name))
                if client.has_own_errors:
                    response.content = client.error_answer(response.status_code, response.content or b"")
                return response
            document = one or _named(name)
        return Response.make(200, client.model_list(dump(document).encode()), {"content-type": "application/json"})

    async def _models(
        self, flow: HTTPFlow, incoming: Incoming, client: Api, entries: Sequence[ModelEntry], default: route.Default
    ) -> list[Model]:
        targets = [route.forward_to(entry, incoming, self.settings) for entry in entries]
        sources = [self._source(flow, client, target) for target in targets]
        others: _Source | None = None
        if isinstance(default, route.Pass) and not default.to_builtin:
            others = self._source(flow, client, default)
        distinct = list(dict.fromkeys([*sources, *([others] if others is not None else [])]))
        lists = dict(zip(distinct, await _lists(distinct), strict=True))
        found: dict[str, Model] = {}
        for entry, source in zip(entries, sources, strict=True):
            listed = {model["id"]: model for model in lists[source]}
            for name in entry.literal_names:
                if entry_for(entries, name) is entry:
                    found.setdefault(name, {**listed.get(entry.model or name, _named(name)), "id": name})
            for name, model in listed.items():
                if entry.model in ("", name) and entry_for(entries, name) is entry:
                    found.setdefault(name, model)
        for model in lists[others] if others is not None else await self._builtin_models(default):
            if entry_for(entries, model["id"]) is None:
                found.setdefault(model["id"], model)
        return list(found.values())

    async def _builtin_models(self, default: route.Default) -> list[Model]:
        names = await self.builtin.models() if isinstance(default, route.Pass) else ()
        # If the models cannot be listed, ``names`` is an error message.
        return [] if isinstance(names, str) else [_named(name) for name in names]

    def _source(self, flow: HTTPFlow, client: Api, target: route.Pass) -> _Source:
        """Return the URL of a backend's model list, and the key and other headers for the request."""
        request = flow.request
        scheme, host, port, path = request.scheme, request.host, request.port, request.path
        if isinstance(target, route.Forward):
            upstream, path = target.upstream, target.path
            scheme, host, port = upstream.scheme, upstream.host, upstream.port
        prefix = route.prefix(path)
        headers = Headers([field for field in request.headers.fields if field[0].lower() in _KEYS])
        authorize(headers, target.authorization)
        backend = self.known.at(scheme, host, port, prefix)
        first, *_ = backend.apis_for(client, self.settings.policy.backend)
        for_backend(headers, client, APIS[first])
        if via := request.headers.get("via"):
            # Without the Via header, a backend that leads back to this proxy would cause an endless loop.
            headers["via"] = via
        return _Source(Root(scheme, host, port).url(prefix + route.MODELS), headers.fields, backend)


async def _lists(sources: Sequence[_Source]) -> list[list[Model]]:
    if not sources:
        return []
    client = await page_client(len(sources))
    try:
        return await asyncio.gather(*(_listed(client, source) for source in sources))
    finally:
        client.close()


async def _listed(client: Any, source: _Source) -> list[Model]:
    from tornado.httpclient import HTTPClientError

    request = page_request(source.url, "", LIST_SECONDS)
    try:
        request.headers.update({name.decode(): value.decode() for name, value in source.fields})
        answer = await client.fetch(request)
    except (HTTPClientError, OSError, ValueError):
        return []
    listed: Mapping[str, Any] = parse_object(answer.body) or {}
    listed = await with_windows(listed, source.backend, request.headers.get("authorization", "")) or listed
    return [{"object": "model", **model} for model in mappings(listed.get("data")) if string(model.get("id"))]


def _named(name: str) -> Model:
    """Return an entry of the model list, in OpenAI's format, for a model whose other fields are unknown."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "toolsim"}
