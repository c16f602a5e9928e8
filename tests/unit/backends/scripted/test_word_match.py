"""Tests for how the scripted model compares words."""

import pytest
from toolsim.backends.scripted.word_match import is_alike, shared, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("getWeather_v2", ["get", "weather", "v2"]),
        ("search-notes", ["search", "notes"]),
        ("Wie ist das Wetter in Köln?", ["wie", "ist", "das", "wetter", "in", "köln"]),
        ("", []),
    ],
)
def test_words_of_names_and_sentences(text: str, expected: list[str]) -> None:
    """Names and sentences are split into words at changes of case and at characters that are not letters or digits."""
    assert words(text) == expected


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("note", "notes", True),
        ("translate", "translation", True),
        ("add", "adding", False),
        ("city", "cite", False),
        ("weather", "whether", False),
        ("a", "a", True),
    ],
)
def test_words_that_differ_in_endings_are_alike(one: str, other: str, alike: bool) -> None:
    """Two words are alike if they differ only in a common ending. The order of the arguments does not matter."""
    assert is_alike(one, other) is is_alike(other, one) is alike


def test_stop_words_are_never_shared() -> None:
    """Stop words such as "the" do not count as shared words, because they do not indicate the topic of a sentence."""
    assert shared(["get", "the", "weather"], ["get", "the", "weather"]) == {"weather"}
