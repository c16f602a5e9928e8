"""Models, and the words that select them."""

from __future__ import annotations

import pytest
from toolsimeval.catalogue import CATALOGUE, Model, is_selected, select


def ids(words: str) -> list[str]:
    return [model.id for model in select(words)]


def test_ids_are_unique() -> None:
    """No id occurs twice."""
    assert len({model.id for model in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("qwen3:4b", ["qwen3:4b"]),
        ("qwen3-8b", ["qwen3:8b"]),
        ("huggingfacetb", ["smollm2"]),
        ("smollm2,qwen3:4b,smollm2", ["smollm2", "qwen3:4b"]),
        ("some-model, other/model:free", ["some-model", "other/model:free"]),
        ("", []),
        ("local,!qwen", ["llama3.2", "smollm2"]),
        ("mine,!mine", []),
        ("local,!qwen,qwen3:8b", ["llama3.2", "smollm2", "qwen3:8b"]),
    ],
)
def test_words_select(words: str, expected: list[str]) -> None:
    """Exact ids, base ids, providers and tags; a word that is not in the catalogue is a name at the server."""
    assert ids(words) == expected


def test_everything_and_a_tag() -> None:
    """``*`` is the whole catalogue, a tag the models that have it."""
    assert ids("*") == [model.id for model in CATALOGUE]
    assert ids("stable") == [model.id for model in CATALOGUE if "stable" in model.tags]
    assert not {"stable"} & {tag for model in select("*,!stable") for tag in model.tags}


def test_selection_by_word() -> None:
    """Any of a model's names will do."""
    model = Model("a/b", "b", "a", ("tools",))
    assert all(is_selected(model, (word,)) for word in ("a/b", "b", "a", "tools", "*"))
    assert not is_selected(model, ("c",))
