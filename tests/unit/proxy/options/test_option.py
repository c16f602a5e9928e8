from __future__ import annotations

import pytest
from toolsimlib.proxy.options.option import Option, Value, from_environment


@pytest.mark.parametrize(
    ("option", "word", "value"),
    [
        (Option("x", False, ""), " Yes ", True),
        (Option("x", True, ""), "off", False),
        (Option("x", 1, "", minimum=1), "7", 7),
        (Option("x", "auto", "", ("auto", "on", "off")), "1", "on"),
        (Option("x", "a", "", ("a", "b")), "B", "b"),
        (Option("x", "", ""), " word ", "word"),
    ],
)
def test_words_of_the_environment(option: Option, word: str, value: Value) -> None:
    """A flag may be written in any of the usual ways, a choice in any case."""
    assert from_environment(option, word) == value


@pytest.mark.parametrize(
    ("option", "word"),
    [
        (Option("x", False, ""), "perhaps"),
        (Option("x", 1, "", minimum=1), "0"),
        (Option("x", 1, ""), "1.5"),
        (Option("x", "a", "", ("a", "b")), "c"),
    ],
)
def test_words_that_mean_nothing(option: Option, word: str) -> None:
    """They are refused, with what was expected."""
    with pytest.raises(ValueError, match="expected"):
        from_environment(option, word)


def test_names_and_types() -> None:
    """As mitmproxy expects them: a tuple is a sequence of strings."""
    assert Option("x", (), "").full_name == "toolsim_x"
    assert Option("x", 1, "").typespec is int
    assert str(Option("x", (), "").typespec) == "collections.abc.Sequence[str]"
