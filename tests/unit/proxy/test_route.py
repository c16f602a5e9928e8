"""Routing decisions for requests, which are tested without flows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.each import each
from toolsim.proxy.access import Incoming, user_of
from toolsim.proxy.address import Upstream
from toolsim.proxy.cors import Origins
from toolsim.proxy.options.api_keys import ApiKeys
from toolsim.proxy.options.models_file import ModelEntry, ModelsFile
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.route import (
    Choose,
    Forward,
    ListModels,
    Pass,
    Respond,
    Route,
    Serve,
    Upgrade,
    api_of,
    choose,
    decide,
    endpoint,
    join,
)
from toolsim.stores.url import StoreUrl
from toolsim.wire.apis import CHAT as CHAT_API
from toolsim.wire.apis import RESPONSES

PORT = 4711
UPSTREAM = Upstream("https", "up.example", 443, "/v2")
CHAT = "/v1/chat/completions"

REVERSE = Incoming("POST", "backend", 80, CHAT, {}, is_reverse=True)
DIRECT = Incoming("POST", "127.0.0.1", 8080, CHAT, {}, is_direct=True)
THROUGH = Incoming("POST", "api.example", 443, CHAT, {})
FORWARD = replace(THROUGH, is_forward=True)
UPGRADE = {"upgrade": "WebSocket"}
EVIL = {"origin": "https://evil.example"}
TO_BUILTIN = Incoming("POST", "localhost", PORT, CHAT, {}, is_reverse=True)

KEYS = ApiKeys.single("k")
USER = KEYS.user("k")
PLAIN = Settings()
KEYED = Settings(api_key=KEYS)
NO_SOCKETS = Settings(websocket=False)
UPSTREAM_KEY = Settings(upstream_key="u")
TAKING_OVER = Settings(upstream=UPSTREAM)
SCRIPTED = Settings(builtin="scripted", origins=Origins(("app://x",)))
STORING = Settings(store=StoreUrl("memory"))
KEPT = "/v1/responses/resp_1"
CODEX = replace(SCRIPTED, builtin="codex")
TAKEN_OVER = Forward(UPSTREAM, "/v2/chat/completions")
SERVED = Forward(Upstream("http", "127.0.0.1", PORT), CHAT, to_builtin=True)


def of(request: Incoming, **changes: Any) -> Incoming:
    user = user_of(changes.get("headers", request.headers), None, KEYS)
    return replace(request, **{"user": user} | changes)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# Each entry consists of the request, the settings, and the expected route or error status.
DECISIONS: dict[str, tuple[Incoming, Settings, Route | int]] = {
    "reverse: the backend's": (REVERSE, PLAIN, Pass()),
    "reverse: any path": (of(REVERSE, path="/x"), PLAIN, Pass()),
    "reverse: metrics": (of(REVERSE, method="GET", path="/toolsim/metrics?x=1"), PLAIN, Respond(page="metrics")),
    "reverse: metrics' head": (of(REVERSE, method="HEAD", path="/toolsim/metrics"), PLAIN, Respond(page="metrics")),
    "pages: metrics need the key": (of(REVERSE, method="GET", path="/toolsim/metrics"), KEYED, 401),
    "pages: ready needs none": (of(REVERSE, method="GET", path="/toolsim/ready"), KEYED, Respond(page="ready")),
    "pages: health needs none": (of(DIRECT, method="HEAD", path="/toolsim/health"), KEYED, Respond(page="health")),
    "pages: the overview": (of(REVERSE, method="GET", path="/toolsim/"), PLAIN, Respond(page="overview")),
    "pages: the overview, no slash": (
        of(DIRECT, method="GET", path="/toolsim"),
        PLAIN,
        Respond(page="overview"),
    ),
    "pages: the overview without the key": (
        of(REVERSE, method="GET", path="/toolsim/"),
        KEYED,
        Respond(page="overview_public"),
    ),
    "pages: the overview with the key": (
        of(REVERSE, method="GET", path="/toolsim/", headers=bearer("k")),
        KEYED,
        Respond(page="overview"),
    ),
    "pages: the overview is for no foreign page": (
        of(REVERSE, method="GET", path="/toolsim/", headers=EVIL),
        PLAIN,
        403,
    ),
    "pages: / over a built-in backend": (of(DIRECT, method="GET", path="/"), SCRIPTED, Respond(page="overview")),
    "pages: / in reverse mode is the backend's": (of(REVERSE, method="GET", path="/"), PLAIN, Pass()),
    "pages: / is not posted to": (of(DIRECT, method="POST", path="/"), SCRIPTED, 404),
    "pages: ready is for no foreign page": (
        of(REVERSE, method="GET", path="/toolsim/ready", headers=EVIL),
        PLAIN,
        403,
    ),
    "pages: ready is asked for by any address, and by no foreign name": (
        of(REVERSE, method="GET", path="/toolsim/ready", reached_at="rebound.example:8080"),
        PLAIN,
        403,
    ),
    "pages: ready of some other host": (of(THROUGH, method="GET", path="/toolsim/ready"), PLAIN, Pass()),
    "reverse: metrics take no POST": (of(REVERSE, path="/toolsim/metrics"), PLAIN, Pass()),
    "reverse: Claude Code's first question": (
        of(REVERSE, method="HEAD", path="/api/hello"),
        PLAIN,
        Respond(page="health"),
    ),
    "through: a site's page that it asks for": (of(THROUGH, method="HEAD", path="/api/hello"), SCRIPTED, Pass()),
    "reverse: another upstream": (REVERSE, TAKING_OVER, TAKEN_OVER),
    "reverse: another upstream for the API only": (of(REVERSE, path="/x"), TAKING_OVER, Pass()),
    "reverse: the built-in backend itself": (TO_BUILTIN, SCRIPTED, Pass(to_builtin=True)),
    "kept: without a store the backend's": (of(REVERSE, method="GET", path=KEPT), PLAIN, Pass()),
    "kept: reverse": (of(REVERSE, method="GET", path=KEPT), STORING, Serve()),
    "kept: direct": (of(DIRECT, method="DELETE", path=KEPT), replace(STORING, builtin="scripted"), Serve()),
    "kept: of some other host": (of(THROUGH, method="GET", path=KEPT), STORING, Pass()),
    "kept: of a host that is taken over": (
        of(THROUGH, method="GET", path=KEPT),
        replace(TAKING_OVER, store=STORING.store),
        Serve(),
    ),
    "kept: without the key": (of(REVERSE, method="GET", path=KEPT), replace(STORING, api_key=KEYS), 401),
    "kept: for a page that is not listed": (
        of(DIRECT, method="GET", path=KEPT, headers={"origin": "https://evil"}),
        replace(STORING, builtin="codex"),
        403,
    ),
    "actions": (of(REVERSE, path="/v1/responses/input_tokens?x=1"), PLAIN, Pass(action="input_tokens")),
    "actions: of the Messages API, taken over": (
        of(THROUGH, path="/v1/messages/count_tokens?beta=true"),
        replace(TAKING_OVER, upstream=Upstream("http", "gpu", 80, "/v1")),
        Forward(Upstream("http", "gpu", 80, "/v1"), "/v1/messages/count_tokens?beta=true", action="input_tokens"),
    ),
    "actions: taken over": (
        of(THROUGH, path="/v1/responses/compact?x=1"),
        TAKING_OVER,
        Forward(UPSTREAM, "/v2/responses/compact?x=1", action="compact"),
    ),
    "actions: of the built-in backend": (
        of(DIRECT, path="/v1/responses/compact"),
        SCRIPTED,
        replace(SERVED, path="/v1/responses/compact", action="compact"),
    ),
    "actions are asked for by POST": (of(REVERSE, method="GET", path="/v1/responses/compact"), PLAIN, Pass()),
    "actions of some other host pass": (of(THROUGH, path="/v1/responses/compact"), PLAIN, Pass()),
    "actions need the key": (of(REVERSE, path="/v1/responses/compact"), KEYED, 401),
    "kept: turns go their way": (of(REVERSE, path="/v1/responses"), STORING, Pass()),
    "direct: the built-in backend": (DIRECT, SCRIPTED, SERVED),
    "direct: no backend": (DIRECT, PLAIN, 404),
    "direct: no such endpoint": (of(DIRECT, path="/x"), SCRIPTED, 404),
    "direct: metrics": (of(DIRECT, method="GET", path="/toolsim/metrics"), SCRIPTED, Respond(page="metrics")),
    "direct: another upstream": (DIRECT, TAKING_OVER, TAKEN_OVER),
    "direct: another upstream's models": (
        of(DIRECT, method="GET", path="/v1/models"),
        TAKING_OVER,
        Forward(UPSTREAM, "/v2/models"),
    ),
    "through: some other host": (THROUGH, SCRIPTED, Pass()),
    "through: taken over": (THROUGH, TAKING_OVER, TAKEN_OVER),
    "through: not the API": (of(THROUGH, path="/about"), TAKING_OVER, Pass()),
    "direct: one of another upstream's models": (
        of(DIRECT, method="GET", path="/v1/models/gpt"),
        TAKING_OVER,
        Forward(UPSTREAM, "/v2/models/gpt"),
    ),
    "through: a site's page below one of that name": (
        of(THROUGH, method="GET", path="/v1/models/gpt"),
        TAKING_OVER,
        Pass(),
    ),
    "through: a site's page of that name": (of(THROUGH, method="GET", path="/models"), TAKING_OVER, Pass()),
    "through: the API's models": (
        of(THROUGH, method="GET", path="/models", headers=bearer("any")),
        TAKING_OVER,
        Forward(UPSTREAM, "/v2/models"),
    ),
    "through: metrics are not ours": (of(THROUGH, method="GET", path="/toolsim/metrics"), PLAIN, Pass()),
    "through: to the built-in backend by another name": (
        of(TO_BUILTIN, is_reverse=False, host="0.0.0.0"),
        SCRIPTED,
        Pass(to_builtin=True),
    ),
    "through: to the built-in backend's port": (of(TO_BUILTIN, is_reverse=False), SCRIPTED, Pass(to_builtin=True)),
    "key: missing": (REVERSE, KEYED, 401),
    "key: wrong": (of(REVERSE, headers=bearer("x")), KEYED, 401),
    "key: right": (of(REVERSE, headers=bearer("k")), KEYED, Pass(authorization="")),
    "key: not to be shown by who sends a flow again": (of(REVERSE, is_resent=True), KEYED, Pass(authorization="")),
    "key: any path": (of(REVERSE, path="/v1/chat/completion%73"), KEYED, 401),
    "key: any path of the listener": (of(DIRECT, path="//toolsim/metrics"), KEYED, 401),
    "key: any method": (of(REVERSE, method="OPTIONS", path="/v1/files"), KEYED, 401),
    "key: replaced": (
        of(REVERSE, headers=bearer("k")),
        replace(KEYED, upstream_key="u"),
        Pass(authorization="Bearer u", key="u"),
    ),
    "upstream's key: alone": (of(REVERSE, path="/v1/files"), UPSTREAM_KEY, Pass(authorization="Bearer u", key="u")),
    "upstream's key: taken over": (
        THROUGH,
        replace(TAKING_OVER, upstream_key="u"),
        replace(TAKEN_OVER, authorization="Bearer u", key="u"),
    ),
    "upstream's key: not for other hosts": (of(THROUGH, path="/about"), replace(TAKING_OVER, upstream_key="u"), Pass()),
    "upstream's key: not for the built-in backend": (DIRECT, replace(SCRIPTED, upstream_key="u"), SERVED),
    "key: metrics too": (of(REVERSE, method="GET", path="/toolsim/metrics"), KEYED, 401),
    "key: not our business": (THROUGH, KEYED, Pass()),
    "key: taken over": (THROUGH, replace(TAKING_OVER, api_key=KEYS), 401),
    "key: opens codex to other machines": (
        of(DIRECT, is_local=False, headers=bearer("k")),
        replace(CODEX, api_key=KEYS),
        replace(SERVED, authorization=""),
    ),
    "key: opens the built-in backend to any origin": (
        of(DIRECT, headers=bearer("k") | {"origin": "https://evil.example"}),
        replace(SCRIPTED, api_key=KEYS),
        replace(SERVED, authorization=""),
    ),
    "codex: another machine": (of(DIRECT, is_local=False), CODEX, 403),
    "codex: this machine": (DIRECT, CODEX, SERVED),
    "codex: another machine by its address": (of(TO_BUILTIN, is_local=False), CODEX, 403),
    "codex: another machine by an upstream": (
        of(THROUGH, is_local=False),
        replace(CODEX, upstream=Upstream("http", "127.0.0.1", PORT)),
        403,
    ),
    "scripted: another machine": (of(DIRECT, is_local=False), SCRIPTED, SERVED),
    "origin: unlisted": (of(DIRECT, headers={"origin": "https://evil.example"}), SCRIPTED, 403),
    "origin: listed": (of(DIRECT, headers={"origin": "app://x"}), SCRIPTED, SERVED),
    "origin: unlisted, over any backend": (of(REVERSE, headers=EVIL), PLAIN, 403),
    "origin: unlisted, any path": (of(REVERSE, path="/x", headers=EVIL), PLAIN, 403),
    "origin: unlisted, with the key": (of(REVERSE, headers=EVIL | bearer("k")), KEYED, Pass(authorization="")),
    "origin: unlisted, to some other host": (of(THROUGH, headers=EVIL), PLAIN, Pass()),
    "origin: unlisted, taken over": (of(THROUGH, headers=EVIL), TAKING_OVER, 403),
    "origin: unlisted, sent again by a person": (of(REVERSE, headers=EVIL, is_resent=True), PLAIN, Pass()),
    "name: foreign": (of(REVERSE, reached_at="evil.test:8080"), PLAIN, 403),
    "name: foreign, metrics": (
        of(REVERSE, method="GET", path="/toolsim/metrics", reached_at="evil.test"),
        PLAIN,
        403,
    ),
    "name: foreign, with the key": (
        of(REVERSE, reached_at="evil.test", headers=bearer("k")),
        KEYED,
        Pass(authorization=""),
    ),
    "name: what is taken over has the name of another host": (
        of(THROUGH, reached_at="api.example"),
        TAKING_OVER,
        TAKEN_OVER,
    ),
    "forward: a built-in backend": (FORWARD, SCRIPTED, 403),
    "forward: a built-in backend, with the key": (
        of(FORWARD, proxy_user=USER, headers=bearer("k")),
        replace(SCRIPTED, api_key=KEYS),
        403,
    ),
    "forward: a built-in backend's own port": (
        of(TO_BUILTIN, is_reverse=False, is_forward=True),
        SCRIPTED,
        403,
    ),
    "forward: the listener itself": (of(DIRECT, is_forward=True), SCRIPTED, SERVED),
    "forward: asked for": (
        of(FORWARD, path="/about"),
        replace(SCRIPTED, upstream=UPSTREAM),
        Pass(),
    ),
    "forward: no backend": (FORWARD, PLAIN, Pass()),
    "forward: without the key": (FORWARD, KEYED, 407),
    "forward: with the key": (of(FORWARD, proxy_user=USER), KEYED, Pass()),
    "forward: taken over without the key": (FORWARD, replace(TAKING_OVER, api_key=KEYS), 401),
    "forward: taken over with the key": (
        of(FORWARD, headers=bearer("k")),
        replace(TAKING_OVER, api_key=KEYS),
        replace(TAKEN_OVER, authorization=""),
    ),
    "forward: taken over with the key for the proxy": (
        of(FORWARD, headers=bearer("other"), proxy_user=USER),
        replace(TAKING_OVER, api_key=KEYS),
        TAKEN_OVER,
    ),
    "forward: sent again by a person": (of(FORWARD, is_resent=True), KEYED, Pass()),
    "websocket": (of(REVERSE, method="GET", path="/v1/responses", headers=UPGRADE), PLAIN, Upgrade()),
    "websocket, posted": (of(REVERSE, path="/v1/responses", headers=UPGRADE), PLAIN, 426),
    "websocket, switched off": (of(REVERSE, method="GET", path="/v1/responses", headers=UPGRADE), NO_SOCKETS, 426),
    "websocket without the key": (of(REVERSE, method="GET", path="/v1/responses", headers=UPGRADE), KEYED, 401),
    "websocket of a foreign page": (
        of(REVERSE, method="GET", path="/v1/responses", headers=EVIL | UPGRADE),
        PLAIN,
        403,
    ),
    "websocket of another API": (of(REVERSE, method="GET", path="/v1/chat/completions", headers=UPGRADE), PLAIN, 426),
    "websocket of another kind": (of(REVERSE, path="/v1/realtime", headers={"upgrade": "websocket"}), PLAIN, Pass()),
}


@each("name", DECISIONS)
def test_route_of_a_request(name: str) -> None:
    """The route of a request depends on its mode, path and key, and on the settings."""
    request, settings, expected = DECISIONS[name]
    found = decide(request, settings, PORT)
    if isinstance(expected, int):
        assert isinstance(found, Respond)
        assert found.error is not None
        assert (found.error.status, found.error.type) == (expected, "invalid_request_error")
    else:
        assert found == expected


def test_unavailable_builtin_backend_is_a_503() -> None:
    """While a built-in backend is not available yet, clients receive a 503 with Retry-After."""
    found = decide(DIRECT, SCRIPTED, None)
    assert isinstance(found, Respond)
    assert found.error is not None
    assert (found.error.status, found.error.retry_after) == (503, 1)


def test_preflight_needs_no_key() -> None:
    """A CORS preflight needs no key. It is answered if its origin is listed, and otherwise refused. A preflight to
    another host is passed on.
    """
    settings = replace(KEYED, builtin="scripted", origins=Origins(("app://x",)))
    for incoming in (REVERSE, DIRECT):
        for origin, expected in (("app://x", None), ("app://y", 401)):
            headers = {"origin": origin, "access-control-request-method": "POST"}
            found = decide(of(incoming, method="OPTIONS", headers=headers), settings, PORT)
            assert isinstance(found, Respond)
            assert (found.error and found.error.status) == expected
            assert found.headers.get("access-control-allow-origin") == (None if expected else origin)
    headers = {"origin": "app://x", "access-control-request-method": "POST"}
    assert decide(of(THROUGH, method="OPTIONS", headers=headers), settings, PORT) == Pass()


def test_errors_for_listed_origins_have_cors_headers() -> None:
    """An error for a listed origin has CORS headers, so that scripts on the page can read the error's reason."""
    settings = replace(KEYED, origins=Origins(("app://x",)))
    found = decide(of(REVERSE, headers={"origin": "app://x"}), settings, PORT)
    assert isinstance(found, Respond)
    assert found.headers["access-control-allow-origin"] == "app://x"


PATHS: list[tuple[str, str]] = [
    ("/v1/responses", "/responses"),
    ("/v1/responses/", "/responses"),
    ("/responses?x=/models", "/responses"),
    ("/openai/deployments/x/chat/completions?api-version=1", "/chat/completions"),
    ("/v1/models", "/models"),
    ("/v1/models/gpt", "/models/gpt"),
    ("/v1/models/qwen/qwen2.5:3b?x", "/models/qwen/qwen2.5:3b"),
    ("/models/gpt", ""),
    ("/v1/responses/resp_1", ""),
    ("/v1/myresponses", ""),
    ("/v1/completions", ""),
    ("/", ""),
    ("", ""),
    ("*", ""),
]


@each(("path", "expected"), PATHS)
def test_endpoint(path: str, expected: str) -> None:
    """The endpoint is determined by the end of the URL's path, without the query."""
    assert endpoint(path) == expected


def test_api_of() -> None:
    """Only POST requests to an endpoint that starts a turn can declare tools."""
    assert api_of("POST", "/v1/responses") is RESPONSES
    assert api_of("POST", "/chat/completions") is CHAT_API
    assert api_of("GET", "/v1/responses") is None
    assert api_of("POST", "/v1/models") is None


@pytest.mark.parametrize(
    ("base", "path", "expected"),
    [
        ("", "/v1/responses?a=1", "/v1/responses?a=1"),
        ("/v1", "/v1/responses?a=1", "/v1/responses?a=1"),
        ("/v2", "/x/chat/completions/", "/v2/chat/completions"),
        ("/v2", "/files", "/files"),
    ],
)
def test_join(base: str, path: str, expected: str) -> None:
    """The path of the upstream URL replaces the part of the request's path before the endpoint."""
    assert join(Upstream("http", "h", 80, base), path) == expected


# -- models file with several backends

SMALL = ModelEntry(("haiku*",), Upstream("http", "small", 11434, "/v1"), "qwen", "sk-small")
LARGE = ModelEntry(("gpt-5*",), Upstream("https", "large", 443))
FREE = ModelEntry(("free",), Upstream("http", "free", 80), key="")
ENTRIES = (SMALL, LARGE, FREE)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ModelsFile:
    file = tmp_path_factory.mktemp("models") / "models.toml"
    file.write_text('[[models]]\nnames = "haiku*"\nurl = "http://small:11434/v1"\n')
    return ModelsFile(file, {})


def test_models_file_routes_by_model(models: ModelsFile) -> None:
    """With a models file, the model's name determines the backend of turns and auxiliary requests. The usual access
    rules apply.
    """
    plain, keyed = Settings(models=models), Settings(models=models, api_key=KEYS)
    scripted, upstream = Settings(models=models, builtin="scripted"), Settings(models=models, upstream=UPSTREAM)
    count, listing = "/v1/messages/count_tokens", "/v1/models/x"
    forward = of(FORWARD, headers={"authorization": "Bearer x"})
    cases: list[tuple[Incoming, Settings, Route | int]] = [
        (REVERSE, plain, Choose(Pass())),
        (DIRECT, plain, Choose(None)),
        (DIRECT, scripted, Choose(SERVED)),
        (THROUGH, upstream, Choose(TAKEN_OVER)),
        (of(DIRECT, path=count), plain, Choose(None, "input_tokens")),
        (of(REVERSE, headers=bearer("k")), keyed, Choose(Pass(authorization=""))),
        (of(DIRECT, method="GET", path=listing), plain, ListModels(None)),
        (of(REVERSE, method="GET", path="/v1/models"), plain, ListModels(Pass())),
        # The access rules also apply with a models file.
        (DIRECT, keyed, 401),
        (of(DIRECT, method="GET", path=listing), keyed, 401),
        (of(REVERSE, headers=EVIL), plain, 403),
        # With a models file, the listener acts as a server, so it forwards requests only to an upstream.
        (FORWARD, plain, 403),
        (of(FORWARD, method="GET", path="/v1/models"), plain, 403),
        (forward, upstream, Choose(TAKEN_OVER)),
        # The models file does not affect requests that do not start a turn, or requests to other hosts.
        (of(DIRECT, path="/v1/embeddings"), plain, 404),
        (of(REVERSE, path="/v1/embeddings"), plain, Pass()),
        (of(REVERSE, method="POST", path="/v1/models"), plain, Pass()),
        (THROUGH, plain, Pass()),
        (of(THROUGH, method="GET", path="/v1/models"), plain, Pass()),
        (of(DIRECT, method="GET", path="/v1/responses", headers=UPGRADE), plain, Upgrade()),
        # A person can replay a flow that this listener received.
        (of(FORWARD, host="small", port=11434, is_resent=True), plain, Choose(None)),
        (of(FORWARD, is_resent=True), plain, Pass()),
    ]
    for request, settings, expected in cases:
        found = decide(request, settings, PORT)
        if isinstance(expected, int):
            assert isinstance(found, Respond)
            assert found.error is not None
            assert found.error.status == expected
        else:
            assert found == expected, request


def test_chosen_backend_receives_its_key(models: ModelsFile) -> None:
    """The chosen backend receives its own key or, if it has none, the client's key, but never the proxy's key."""
    plain, upstream_key = Settings(models=models), Settings(models=models, upstream_key="u")
    client, keyed = of(DIRECT, headers=bearer("c")), Settings(models=models, api_key=KEYS)
    ours = of(DIRECT, headers=bearer("k"))
    small = Forward(SMALL.upstream, CHAT, authorization="Bearer sk-small", key="sk-small", model="qwen")
    large = Forward(LARGE.upstream, CHAT)
    cases: list[tuple[Incoming, Settings, str, Forward]] = [
        (client, plain, "haiku-4", small),
        (client, upstream_key, "haiku-4", small),
        (ours, keyed, "haiku-4", small),
        (client, plain, "gpt-5.1", large),
        (client, upstream_key, "gpt-5.1", large),
        (ours, keyed, "gpt-5.1", replace(large, authorization="")),
        (of(client, proxy_user=USER), keyed, "gpt-5.1", large),
        (client, plain, "free", Forward(FREE.upstream, CHAT, authorization="")),
        (of(client, path="/v2/chat/completions?x=1"), plain, "haiku", replace(small, path=f"{CHAT}?x=1")),
    ]
    for request, settings, model, expected in cases:
        assert choose(request, settings, Choose(None), ENTRIES, model) == expected
    count = of(client, path="/v1/responses/input_tokens")
    found = choose(count, plain, Choose(None, "input_tokens"), ENTRIES, "haiku")
    assert found == replace(small, path="/v1/responses/input_tokens", action="input_tokens")


def test_model_without_a_backend_uses_the_default() -> None:
    """A request for a model that has no backend is routed to the default backend. Without a default, it is refused with
    a short error.
    """
    for model in ("other", "", None):
        assert choose(DIRECT, PLAIN, Choose(SERVED), ENTRIES, model) == SERVED
    for model, status, param, words in (
        (
            "other",
            404,
            "model",
            "The model 'other' does not exist on this proxy. Available models: haiku*, gpt-5*, free.",
        ),
        ("x" * 9_999, 404, "model", f"'{'x' * 200}'"),
        ("", 400, "model", "'model' is missing"),
        (None, 400, None, "not a JSON object"),
    ):
        found = choose(DIRECT, PLAIN, Choose(None), ENTRIES, model)
        assert isinstance(found, Respond)
        assert found.error is not None
        assert (found.error.status, found.error.param) == (status, param)
        assert words in found.error.message
        assert len(found.error.message) < 500
