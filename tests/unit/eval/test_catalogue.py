"""Models, and the words that select them."""

from __future__ import annotations

from support.each import each
from toolsim.eval.catalogue import CATALOGUE, Model, is_selected, missing, select


def ids(words: str) -> list[str]:
    return [model.id for model in select(words)]


def test_ids_are_unique() -> None:
    """No id occurs twice."""
    assert len({model.id for model in CATALOGUE}) == len(CATALOGUE)


@each(
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
        ("google,!google/gemini-*,!google/gemma-3-27b-it:*", []),
        ("free,!google/gemma-3-27b-it", ["google/gemma-3-27b-it:free", "meta-llama/llama-3.3-70b-instruct:free"]),
        ("google/gemma-3-27b-it:*", ["google/gemma-3-27b-it", "google/gemma-3-27b-it:free"]),
        ("unreliable", ["qwen-0.5b", "qwen-1.5b"]),
        ("no/such-*", []),
    ],
)
def test_words_select(words: str, expected: list[str]) -> None:
    """Exact ids, base ids, providers and tags; a word that is not in the catalogue is a name at the server."""
    assert ids(words) == expected


def test_everything_and_a_tag() -> None:
    """``*`` is the whole catalogue, a tag the models that have it."""
    assert ids("*") == ids("all") == [model.id for model in CATALOGUE]
    assert ids("!google/gemini-2.0-flash-001:*") == [id for id in ids("stable") if id != "google/gemini-2.0-flash-001"]
    assert ids("all,!reliable") == [model.id for model in CATALOGUE if not model.tool_calling_reliable]
    assert ids("stable") == [model.id for model in CATALOGUE if "stable" in model.tags]
    assert not {"stable"} & {tag for model in select("*,!stable") for tag in model.tags}


def test_selection_by_word() -> None:
    """Any of a model's names will do."""
    model = Model("a/b", "b", "a", ("tools",))
    assert all(is_selected(model, (word,)) for word in ("a/b", "b", "a", "tools", "*"))
    assert not is_selected(model, ("c",))


def test_what_the_server_lists() -> None:
    """A pattern selects from it too; what it no longer lists is missing, unless it was named by its exact id."""
    served = ["google/gemini-9", "google/gemini-2.5-pro", "x/y:free"]
    assert [model.id for model in select("*:free", served)][-1] == "x/y:free"
    assert [model.id for model in select("google/gemini-*", served)][-1] == "google/gemini-9"
    assert missing("google", served) == [id for id in ids("google") if id != "google/gemini-2.5-pro"]
    assert missing("google/gemini-2.5-flash,mine", served) == []
