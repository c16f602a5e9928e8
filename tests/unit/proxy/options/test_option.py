"""Parsing of option values of each type; ``test_startup.py`` tests the messages that users see."""

from __future__ import annotations

from typing import Any

import pytest
from toolsim.proxy.options.option import Option

LIST, FLAG, NUMBER = Option("x", ("d",), ""), Option("x", False, ""), Option("x", 3, "", minimum=1)
CHOICE, TEXT = Option("x", "a", "", ("a", "bee")), Option("x", "", "")


@pytest.mark.parametrize(
    ("option", "texts", "value"),
    [
        (LIST, ["a,b", "c"], ("a,b", "c")),
        (LIST, [], ()),
        (FLAG, [""], True),
        (FLAG, ["toggle"], True),
        (FLAG, ["false"], False),
        (NUMBER, ["7"], 7),
        (CHOICE, ["bee"], "bee"),
        (TEXT, ["a b"], "a b"),
    ],
)
def test_texts_are_parsed_as_by_mitmproxy(option: Option, texts: list[str], value: object) -> None:
    """Values on the command line are parsed as mitmproxy parses them."""
    assert option.from_texts(texts) == value


@pytest.mark.parametrize(
    ("option", "texts", "reason"),
    [
        (FLAG, ["maybe"], "got 'maybe', expected true or false"),
        (NUMBER, ["7m"], "got '7m', expected a whole number, 1 or more"),
        (CHOICE, ["Bee"], r"got 'Bee', expected one of a, bee; did you mean bee\?"),
        (CHOICE, [], "got no value, expected one of a, bee"),
        (TEXT, ["a", "b"], "got 'a' and 'b', expected one value"),
    ],
)
def test_invalid_texts_are_refused(option: Option, texts: list[str], reason: str) -> None:
    """The error for an invalid value quotes the value and states the expected format."""
    with pytest.raises(ValueError, match=reason):
        option.from_texts(texts)


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        (LIST, ["a"], "a"),
        (LIST, [], [1]),
        (FLAG, True, 1),
        (NUMBER, 7, True),
        (NUMBER, 7, "7"),
        (CHOICE, "bee", True),
        (TEXT, "a", 5),
    ],
)
def test_yaml_values_must_have_the_type(option: Option, good: Any, bad: Any) -> None:
    """A value from YAML is accepted only if it has the option's type."""
    assert option.from_yaml(good) == (tuple(good) if isinstance(good, list) else good)
    with pytest.raises(ValueError, match="expected"):
        option.from_yaml(bad)


def test_values_from_mitmproxy_are_checked() -> None:
    """The items of a list are split at commas. Numbers below the option's minimum and unknown choices are refused."""
    assert LIST.checked(["a, b", ",c"]) == ("a", "b", "c")
    assert (FLAG.checked(False), NUMBER.checked(1), CHOICE.checked("a")) == (False, 1, "a")
    with pytest.raises(ValueError, match="got 0, expected 1 or more"):
        NUMBER.checked(0)
    with pytest.raises(ValueError, match="got 'c', expected one of a, bee"):
        CHOICE.checked("c")


def test_names_and_types() -> None:
    """An option has the name and the type that mitmproxy expects. An option whose default is a tuple has the type
    ``Sequence[str]``.
    """
    assert Option("x", (), "").full_name == "toolsim_x"
    assert Option("x", 1, "").typespec is int
    assert str(Option("x", (), "").typespec) == "collections.abc.Sequence[str]"
