"""Tests for reading the size of the context window from the web pages of inference servers."""

from __future__ import annotations

from toolsim.request.context_window import listed_window, shown_window, windows_on, with_window


def test_sizes_are_read_from_server_pages() -> None:
    """The context window size is read from llama.cpp's slots, Ollama's loaded models or LM Studio's model list."""
    assert windows_on("/props", {"default_generation_settings": {"n_ctx": 8192}, "total_slots": 4}) == {"": 8192}
    assert windows_on("/props", {"default_generation_settings": {}}) == {}
    loaded = {"models": [{"name": "qwen3:8b", "model": "qwen3:8b", "context_length": 4096}, {"name": "old"}]}
    assert windows_on("/api/ps", loaded) == {"qwen3:8b": 4096}
    listed = {"data": [{"id": "a", "loaded_context_length": 4096, "max_context_length": 32768}, {"id": "b"}]}
    assert windows_on("/api/v0/models", listed) == {"a": 4096}
    assert windows_on("/api/v0/models", {"data": "x"}) == {}


def test_configured_window_of_ollama_takes_precedence() -> None:
    """The context window configured for an Ollama model takes precedence over the context length from the model's
    training.
    """
    facts = {"model_info": {"qwen3.context_length": 40960, "qwen3.block_count": 36}}
    assert shown_window(facts) == 40960
    assert shown_window(facts | {"parameters": "stop  x\nnum_ctx                        16384\n"}) == 16384
    assert shown_window({}) is None


def test_model_entry_receives_the_window() -> None:
    """The window size is added to a model's entry under each common field name that is missing, but an existing size is
    not overwritten.
    """
    assert listed_window({"max_model_len": 32768}) == 32768
    assert listed_window({"max_model_len": True, "context_window": 0}) is None
    assert with_window({"id": "m"}, None) == {"id": "m"}
    assert with_window({"id": "m", "context_window": 5}, 9) == {
        "id": "m",
        "context_length": 5,
        "context_window": 5,
        "max_model_len": 5,
    }
