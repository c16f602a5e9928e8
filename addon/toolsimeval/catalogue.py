"""A small catalogue of models as data, and the words that select models from it.

``tags``: ``stable`` = in the default selection of hosted models; ``open`` = open weights; ``local`` = runs on a laptop;
``tools`` = its makers train and document it for tool calls. ``tool_calling_reliable`` is narrower: whether its native
calls reliably come as calls, not as text that looks like one; False was measured, None is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolsimeval.flags import words


@dataclass(frozen=True, slots=True)
class Model:
    """One model. ``id``: its name at the server; ``base_id``: the model behind several ids.

    ``options``: request options that it always needs; ``recommended``: sampling by its makers' card.
    """

    id: str
    base_id: str
    provider: str
    tags: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    recommended: Mapping[str, Any] = field(default_factory=dict)
    tool_calling_reliable: bool | None = None


_QWEN3 = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0}
_QWEN25 = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}
_LLAMA = {"temperature": 0.6, "top_p": 0.9}

CATALOGUE = (
    Model("openai/gpt-4o-mini", "gpt-4o-mini", "openai", ("stable", "tools"), tool_calling_reliable=True),
    Model("openai/gpt-4.1-mini", "gpt-4.1-mini", "openai", ("stable", "tools"), tool_calling_reliable=True),
    Model(
        "anthropic/claude-3.5-haiku", "claude-3.5-haiku", "anthropic", ("stable", "tools"), tool_calling_reliable=True
    ),
    Model("google/gemini-2.0-flash-001", "gemini-2.0-flash", "google", ("stable", "tools")),
    Model(
        "mistralai/mistral-small-3.2-24b-instruct",
        "mistral-small-3.2-24b",
        "mistralai",
        ("stable", "open", "tools"),
        recommended={"temperature": 0.15},
    ),
    Model(
        "meta-llama/llama-3.3-70b-instruct",
        "llama-3.3-70b",
        "meta-llama",
        ("stable", "open", "tools"),
        recommended=_LLAMA,
    ),
    Model("qwen/qwen-2.5-72b-instruct", "qwen2.5-72b", "qwen", ("stable", "open", "tools"), recommended=_QWEN25),
    Model(
        "deepseek/deepseek-chat-v3-0324",
        "deepseek-v3",
        "deepseek",
        ("stable", "open", "tools"),
        recommended={"temperature": 0.3},
    ),
    Model("qwen3:4b", "qwen3-4b", "qwen", ("open", "local", "tools"), recommended=_QWEN3),
    Model("qwen3:8b", "qwen3-8b", "qwen", ("open", "local", "tools"), recommended=_QWEN3),
    Model("llama3.2", "llama-3.2-3b", "meta-llama", ("open", "local", "tools"), recommended=_LLAMA),
    Model(
        "qwen-0.5b", "qwen2.5-coder-0.5b", "qwen", ("open", "local"), recommended=_QWEN25, tool_calling_reliable=False
    ),
    Model(
        "qwen-1.5b", "qwen2.5-coder-1.5b", "qwen", ("open", "local"), recommended=_QWEN25, tool_calling_reliable=False
    ),
    Model(
        "smollm2", "smollm2-135m", "huggingfacetb", ("open", "local"), recommended={"temperature": 0.2, "top_p": 0.9}
    ),
)


def is_selected(model: Model, named: Sequence[str]) -> bool:
    """Return whether one of the words matches the model: its id, base id, provider, a tag, or ``*``."""
    names = {model.id, model.base_id, model.provider, *model.tags, "*"}
    return any(word in names for word in named)


def select(selection: str) -> list[Model]:
    """Return the models of a list of words, in the list's order; ``!`` excludes models named before it.

    A word that matches nothing in the catalogue is the name of a model at the server.
    """
    chosen: dict[str, Model] = {}
    for word in words(selection):
        name = word.removeprefix("!")
        exact = [model for model in CATALOGUE if model.id == name]
        found = exact or [model for model in CATALOGUE if is_selected(model, (name,))]
        if word.startswith("!"):
            for id in [model.id for model in chosen.values() if model in found or model.id == name]:
                del chosen[id]
        else:
            for model in found or [Model(name, name, "")]:
                chosen[model.id] = model
    return list(chosen.values())
