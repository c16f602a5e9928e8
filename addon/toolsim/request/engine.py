"""Recognizes the server software behind a backend's address (the engine), and adapts requests to it.

Servers with the same API differ in how they process a request. Each row of ``PROBES`` describes a page that identifies
one server; ``proxy/backend_registry.py`` fetches these pages. The server affects a request in three ways:

1. *The tag.* Ollama itself parses ``<tool_call>`` in the answers of some models, even if the request has no tools, and
   fails with HTTP 500 ``{"error":"EOF"}`` if the call is not in the form that it expects. For these models, a private
   tag is used.
2. *The form of a call.* If a request has a schema, each of these servers lets the model write only JSON that matches
   it. A schema is sent if the answer must contain a call. llama.cpp, vLLM and SGLang can also activate a grammar within
   free text. toolsim uses this for strict tools.
3. *Special tokens.* vLLM and SGLang drop special tokens, including the markers around the calls of some models, from
   answers to requests without ``tools``. toolsim requests special tokens only for these models, because the field that
   requests them makes the server keep all special tokens except the end-of-turn token.

If ``auto`` selects a feature and the backend rejects it for a model, toolsim does not use the feature for that model
again. A feature selected by the operator is always used, and the client receives the backend's error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from toolsim.core.conversation import ClientRequest
from toolsim.core.plan import Feature
from toolsim.core.policy import Engine, Policy
from toolsim.wire.api import Api
from toolsim.wire.content import has_files

TAG = "tool_call"
"""The tag of the Hermes models. Models are more likely to know this tag from their training than any other tag."""
PRIVATE_TAG = "call_tool"
"""A tag that no server's own parser recognizes."""

# Models whose answers Ollama parses even if the request has no tools.
_PARSED_BY_OLLAMA = re.compile(r"qwen-?3|glm-?4\.7", re.IGNORECASE)
# Models whose calls are enclosed in special tokens.
_SPECIAL_TOKENS = re.compile(r"kimi|gemma-?4|(?:mi|mini|magi|dev|code)stral", re.IGNORECASE)
_VERSION = re.compile(r"\d+\.\d+[\w.+-]*")


@dataclass(frozen=True, slots=True)
class Probe:
    """A page that identifies one engine. ``fits`` takes the JSON object on the page, and returns whether it comes from
    this engine.
    """

    path: str
    engine: Engine
    fits: Callable[[Mapping[str, Any]], bool]


PROBES = (
    Probe("/props", "llama.cpp", lambda body: "default_generation_settings" in body),
    Probe("/api/version", "ollama", lambda body: _is_version(body.get("version"))),
    # LocalAI also serves ``/version``, but its version numbers begin with a "v".
    Probe("/version", "vllm", lambda body: body.keys() == {"version"} and _is_version(body["version"])),
    Probe("/server_info", "sglang", lambda body: "internal_states" in body),
    Probe("/get_server_info", "sglang", lambda body: "internal_states" in body),
    Probe("/api/v0/models", "lmstudio", lambda body: body.get("object") == "list" and "data" in body),
)


def engine_of(probe: Probe, status: int, headers: Mapping[str, str], body: Mapping[str, Any]) -> Engine | None:
    """Return the engine that the response to a probe identifies, or None if it identifies no engine.

    The keys of ``headers`` are case-insensitive or in lowercase. ``body`` is empty if the response is not a JSON
    object.
    """
    if headers.get("server", "").lower() == "llama.cpp":
        return "llama.cpp"  # llama.cpp sends this header even with errors, for example if the API key is missing.
    return probe.engine if status == 200 and probe.fits(body) else None


def resolve_auto(
    policy: Policy, request: ClientRequest, backend: Api, refused: Collection[tuple[str, Feature]]
) -> tuple[Policy, frozenset[Feature]]:
    """Return the policy for one request, with ``auto`` resolved, and the features that the request attempts to use."""
    model = policy.model_at_backend(request.form.model)
    mode, constrain = policy.mode, policy.constrain
    attempts: set[Feature] = set()
    if mode == "auto":
        native = backend.name == request.api and (model, "tools") not in refused
        mode = "native" if native else "inject"
        if native:
            attempts.add("tools")
    if constrain == "auto":
        constrain = "off" if (model, "constraint") in refused else _constraint(policy.engine, request, backend)
        if constrain != "off" and mode == "inject":
            attempts.add("constraint")
    is_kept = mode == "native" and backend.name == request.api
    if not is_kept and (model, "files") not in refused and has_files(request.items):
        attempts.add("files")
    return replace(policy, sentinel=_tag(policy, model), mode=mode, constrain=constrain), frozenset(attempts)


def engine_fields(engine: str, model: str) -> dict[str, Any]:
    """Return the additional fields that a request without ``tools`` needs for this engine and model."""
    if engine in ("vllm", "sglang") and _SPECIAL_TOKENS.search(model):
        return {"skip_special_tokens": False}
    return {}


def is_refusal(attempt: Feature, status: int, message: str) -> bool:
    """Return whether a backend's error means that the backend does not support the attempted feature.

    The feature was used in the request, so it is sufficient that the error names the feature. Statuses with other
    causes, such as an invalid key or a timeout, are excluded.
    """
    return 400 <= status < 600 and status not in _OTHER_REASONS and _REFUSAL[attempt].search(message) is not None


_OTHER_REASONS = (401, 403, 408, 413, 429, 502, 503, 504)
_CANNOT = (
    r"not (?:be )?(?:support|enabled|available|allowed|permitted|implemented)|n.t support|unsupported|requires?\b"
    r"|unknown|unrecogni[sz]ed|unexpected|extra|no endpoints"
)
_REFUSAL: Mapping[Feature, re.Pattern[str]] = {
    # Errors about a client's own tools also mention tools, but contain none of the words in ``_CANNOT``.
    "tools": re.compile(
        rf"(?=.*(?:\btools?\b|tool[_ -](?:us|choice|call)|function[_ -]?call))(?=.*(?:{_CANNOT}))",
        re.IGNORECASE | re.DOTALL,
    ),
    "files": re.compile(
        r"(?=.*(?:\bfile|document|audio|content\b|\bpart\b|block|message format))"
        rf"(?=.*(?:{_CANNOT}|invalid|only text|must|should be|expected))",
        re.IGNORECASE | re.DOTALL,
    ),
    # An error about a client's schema does not mean that the feature is unsupported.
    "format": re.compile(
        r"(?=.*(?:response_?\s?format|text\.format|output_?(?:format|config)|json_(?:schema|object)|structured))"
        rf"(?=.*(?:{_CANNOT}|unavailable|must be|should be|one of|invalid (?:type|value)))(?!.*invalid schema)",
        re.IGNORECASE | re.DOTALL,
    ),
    "constraint": re.compile(r"response_format|text\.format|schema|structur|grammar|guided|constrain", re.IGNORECASE),
}


def _tag(policy: Policy, model: str) -> str:
    if policy.sentinel != "auto":
        return policy.sentinel
    return PRIVATE_TAG if policy.engine == "ollama" and _PARSED_BY_OLLAMA.search(model) else TAG


def _constraint(
    engine: str, request: ClientRequest, backend: Api
) -> Literal["off", "json_schema", "gbnf", "structural_tag"]:
    if engine == "unknown":
        return "off"
    if request.tool_choice.mode == "required":
        return "json_schema"
    if any(tool.strict for tool in request.tools):
        if engine == "llama.cpp":
            return "gbnf"
        if engine in ("vllm", "sglang") and backend.takes_structural_tags:
            return "structural_tag"
    return "off"


def _is_version(value: object) -> bool:
    return isinstance(value, str) and _VERSION.fullmatch(value) is not None
