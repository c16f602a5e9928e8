"""Tests for recognizing an inference server, and for the settings that depend on the server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.each import each
from toolsim.core.conversation import ClientRequest
from toolsim.core.plan import AnswerForm, Tool, ToolChoice
from toolsim.core.policy import Policy
from toolsim.request.engine import PRIVATE_TAG, PROBES, TAG, engine_fields, engine_of, is_refusal, resolve_auto
from toolsim.wire.apis import CHAT, RESPONSES

AUTO = Policy(engine="unknown", sentinel="auto", constrain="auto", mode="auto")
TOOL = Tool("f", "f")

# For each server, the pages that identify it, each with a status, headers and a body.
PAGES: dict[str, dict[str, tuple[int, dict[str, str], dict[str, Any]]]] = {
    "llama.cpp": {"/props": (200, {"server": "llama.cpp"}, {"default_generation_settings": {}, "total_slots": 1})},
    "llama.cpp with a key": {"/props": (401, {"server": "llama.cpp"}, {"error": {"code": 401}})},
    "ollama": {"/api/version": (200, {}, {"version": "0.12.6"})},
    "vllm": {"/version": (200, {"server": "uvicorn"}, {"version": "0.11.1rc3.dev12+g1b2c"})},
    "sglang": {"/server_info": (200, {}, {"version": "0.5.23", "internal_states": [{}]})},
    "sglang before": {"/get_server_info": (200, {}, {"version": "0.4.1", "internal_states": [{}]})},
    "lmstudio": {
        "/api/v0/models": (200, {}, {"object": "list", "data": [{"id": "qwen"}]}),
        # LM Studio responds even to unknown paths with status 200.
        "/props": (200, {}, {"error": "Unexpected endpoint or method. (GET /props)"}),
        "/version": (200, {}, {"error": "Unexpected endpoint or method. (GET /version)"}),
    },
    "unknown: LocalAI": {"/version": (200, {}, {"version": "v3.1.0 (1b2c)"})},
    "unknown: vLLM's other page": {"/server_info": (200, {}, {"vllm_config": "…"})},
    "unknown: a page of errors": {"/props": (404, {}, {"default_generation_settings": {}})},
    "unknown: nonsense": {"/version": (200, {}, {"version": 3}), "/api/version": (200, {}, {})},
}


@each("server", PAGES)
def test_servers_are_recognized_by_their_pages(server: str) -> None:
    """Each inference server is recognized by at least one of its pages, and is not mistaken for another server."""
    missing: tuple[int, dict[str, str], dict[str, Any]] = (404, {}, {})
    found = {engine_of(probe, *PAGES[server].get(probe.path, missing)) for probe in PROBES} - {None}
    name = server.partition(":")[0].split()[0]
    assert found == ({name} if name != "unknown" else set())


def request(model: str = "m", *, required: bool = False, strict: bool = False) -> ClientRequest:
    choice = ToolChoice("required" if required else "auto")
    return ClientRequest(
        "chat", {}, (), AnswerForm(model=model), tools=(replace(TOOL, strict=strict),), tool_choice=choice
    )


@pytest.mark.parametrize(
    ("engine", "model", "tag"),
    [
        ("ollama", "qwen3:4b", PRIVATE_TAG),
        ("ollama", "qwen3.5:0.8b", PRIVATE_TAG),
        ("ollama", "hf.co/unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4", PRIVATE_TAG),
        ("ollama", "glm-4.7-flash", PRIVATE_TAG),
        ("ollama", "qwen2.5-coder:7b", TAG),
        ("ollama", "llama3.2", TAG),
        ("vllm", "Qwen/Qwen3-8B", TAG),
        ("unknown", "qwen3:4b", TAG),
    ],
)
def test_ollama_gets_a_private_tag(engine: Any, model: str, tag: str) -> None:
    """If Ollama's own parser would intercept calls in the default tag, toolsim uses a different tag, unless the
    operator configured one.
    """
    settled, _ = resolve_auto(replace(AUTO, engine=engine), request(model), CHAT, ())
    assert settled.sentinel == tag
    assert settled.manifest == "auto"
    named, _ = resolve_auto(replace(AUTO, engine=engine, sentinel="acme"), request(model), CHAT, ())
    assert named.sentinel == "acme"


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama", "lmstudio", "vllm", "sglang"])
def test_required_call_is_enforced(engine: Any) -> None:
    """On any server that supports JSON schemas, toolsim tries to enforce a required call with a schema, in both the
    chat API and the Responses API.
    """
    policy = replace(AUTO, engine=engine, mode="inject")
    for api in (CHAT, RESPONSES):
        assert resolve_auto(policy, request(required=True), api, ())[0].constrain == "json_schema"
    assert resolve_auto(policy, request(required=True), CHAT, ())[1] == {"constraint"}
    assert resolve_auto(policy, request(), CHAT, ())[0].constrain == "off"


@pytest.mark.parametrize(
    ("engine", "kind"), [("vllm", "structural_tag"), ("sglang", "structural_tag"), ("ollama", "off")]
)
def test_strict_tools_are_enforced_in_free_text(engine: Any, kind: str) -> None:
    """If the engine supports structural tags, calls to strict tools are constrained and other text is not. This applies
    only to the chat API.
    """
    policy = replace(AUTO, engine=engine, mode="inject")
    assert resolve_auto(policy, request(strict=True), CHAT, ())[0].constrain == kind
    over_responses = resolve_auto(policy, request(strict=True), RESPONSES, ())[0].constrain
    assert over_responses == (kind if kind == "gbnf" else "off")


def test_unknown_server_has_the_defaults() -> None:
    """For an unknown server, the policy keeps its default values. A required call is stated in the prompt, but not
    enforced.
    """
    settled, attempts = resolve_auto(replace(AUTO, mode="inject"), request(required=True), CHAT, ())
    assert (settled, attempts) == (Policy(), frozenset())


def test_refused_feature_is_not_attempted_again() -> None:
    """A feature that the backend refused for a model is not attempted again for that model, unless the operator
    explicitly enabled it.
    """
    policy = replace(AUTO, engine="llama.cpp")
    refused = {("m", "tools"), ("m", "constraint")}
    settled, attempts = resolve_auto(policy, request(required=True), CHAT, refused)
    assert (settled.mode, settled.constrain, attempts) == ("inject", "off", frozenset())
    settled, attempts = resolve_auto(policy, request("other", required=True), CHAT, refused)
    assert (settled.mode, attempts) == ("native", {"tools"})
    chosen = replace(policy, mode="native", constrain="json_schema")
    settled, attempts = resolve_auto(chosen, request(required=True), CHAT, refused)
    assert (settled.mode, settled.constrain, attempts) == ("native", "json_schema", frozenset())


def test_native_tools_need_a_backend_of_the_same_api() -> None:
    """Tools are sent natively only to a backend that has the same API as the client. If a request is translated, its
    tools are described as text.
    """
    assert resolve_auto(AUTO, request(), RESPONSES, ())[0].mode == "inject"


@pytest.mark.parametrize(
    ("engine", "model", "preserved"),
    [
        ("vllm", "moonshotai/Kimi-K2-Instruct", True),
        ("sglang", "google/gemma-4-12b-it", True),
        ("vllm", "mistralai/Mistral-Small-3.2-24B-Instruct-2506", True),
        ("vllm", "mistralai/Devstral-Small-2507", True),
        ("vllm", "Qwen/Qwen3-8B", False),
        ("llama.cpp", "Kimi-K2", False),
        ("unknown", "Kimi-K2", False),
    ],
)
def test_special_tokens(engine: str, model: str, preserved: bool) -> None:
    """Some models write calls between special tokens, which some servers remove from the answer. For such a model and
    server, the request asks the server to keep the tokens.
    """
    assert engine_fields(engine, model) == ({"skip_special_tokens": False} if preserved else {})


REFUSALS = [
    ("tools", 500, "tools param requires --jinja flag"),
    ("tools", 400, "registry.ollama.ai/library/gemma3:1b does not support tools"),
    ("tools", 400, "Unsupported param: tools"),
    ("tools", 400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
    ("tools", 404, "No endpoints found that support tool use."),
    ("tools", 422, '[{"type":"extra_forbidden","loc":["body","tools"],"msg":"Extra inputs are not permitted"}]'),
    ("tools", 400, "Function calling is not enabled for this model"),
    ("files", 500, "unsupported content[].type"),
    ("files", 400, "Unknown part type: file"),
    ("files", 400, "invalid message format"),
    ("files", 422, "unknown variant `file`, expected `text` or `image_url`"),
    ("files", 400, "'content' objects must have a 'type' field that is either 'text' or 'image_url'."),
    ("files", 400, "messages.0.content.1.document.source: documents are not supported by this model"),
    ("constraint", 400, "'response_format.type' must be 'text'"),
    ("constraint", 400, "json_schema is not supported"),
    ("constraint", 500, "Failed to parse grammar"),
    ("constraint", 400, "Invalid structural tag"),
]
OTHERS = [
    ("tools", 400, "This model's maximum context length is 8192 tokens."),
    ("tools", 400, "messages with role 'tool' must follow a message with tool_calls"),
    ("tools", 429, "tools are not supported at this rate"),
    ("tools", 401, "This key does not support tools"),
    ("files", 400, "This model's maximum context length is 8192 tokens."),
    ("files", 404, "Unknown model"),
    ("files", 413, "The file is too large: expected at most 4 MB"),
    ("constraint", 400, "Unknown model"),
    ("constraint", 503, "Loading the grammar"),
    ("constraint", 200, "grammar"),
]


@each(("feature", "status", "message"), REFUSALS)
def test_refusals_are_recognized(feature: Any, status: int, message: str) -> None:
    """A server's error message about a missing feature is recognized as a refusal of that feature."""
    assert is_refusal(feature, status, message)


@pytest.mark.parametrize(("feature", "status", "message"), OTHERS)
def test_other_errors_are_not_refusals(feature: Any, status: int, message: str) -> None:
    """An error that is not about a missing feature does not count as a refusal."""
    assert not is_refusal(feature, status, message)
