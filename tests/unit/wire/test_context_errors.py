"""Detection of errors about prompts that exceed the context window, as worded by several servers."""

from __future__ import annotations

import pytest
from toolsim.wire.errors import read_error

LLAMA = {
    "code": 400,
    "message": "the request exceeds the available context size, try increasing it",
    "type": "exceed_context_size_error",
    "n_ctx": 4096,
}
TOO_LONG = {
    "openai": {"message": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."},
    "responses": {"message": "Your input exceeds the context window of this model. Please adjust your input."},
    "code": {"message": "Please reduce the length of the messages.", "code": "context_length_exceeded"},
    "llama.cpp": {"error": LLAMA},
    "llama.cpp, counted": {"message": "request (5000 tokens) exceeds the available context size (4096 tokens)"},
    "vllm": {"message": "Input length (5000) exceeds model's maximum context length (4096)."},
    "vllm, decoder": {"message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096."},
    "vllm, only": {"message": "You passed 5000 input tokens. However, the model's context length is only 4096 tokens"},
    "sglang": {"message": "The input (5000 tokens) is longer than the model's context length (4096 tokens)."},
    "ollama": {"error": "input length exceeds the context length"},
    "lmstudio": {"error": "The number of tokens to keep from the initial prompt is greater than the context length."},
    "lmstudio, overflow": {
        "error": "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with"
        " context length of only 4096 tokens, which is not enough."
    },
    "mistral": {"message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"},
    "anthropic": {"type": "error", "error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}},
    "anthropic, limit": {"error": {"message": "input length and `max_tokens` exceed context limit: 190000 + 20000"}},
}
OTHERS = [
    {"message": "max_tokens is too large: 10000. This model supports at most 4096 completion tokens."},
    {"message": "Unknown parameter: context_length."},
    {"message": "Rate limit exceeded: maximum 10 requests."},
    {"message": "The file is too large."},
    {"message": "messages: content exceeds the maximum size"},
    {"message": "Tool 'read' has no context"},
]


@pytest.mark.parametrize("server", TOO_LONG)
def test_context_errors_have_one_code(server: str) -> None:
    """An error about a prompt that is too long receives OpenAI's code, type and status, regardless of how the backend
    words it.
    """
    error = read_error(TOO_LONG[server])
    assert (error.code, error.type, error.status) == ("context_length_exceeded", "invalid_request_error", 400)


@pytest.mark.parametrize("error", OTHERS)
def test_other_limits_are_not_context_errors(error: dict[str, str]) -> None:
    """An error about another limit is not mistaken for an error about the context window."""
    assert read_error(error).code is None
