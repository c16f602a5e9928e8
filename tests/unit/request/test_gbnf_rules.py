"""Tests for GBNF rules, with an engine that parses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import engine_grammar
from toolsim.request import gbnf
from toolsim.request.gbnf import Rules, TooLarge, literal, none_of

CHARS = st.sampled_from("ab\\\"'-]^[{}<>\t\n\r /é😀")


@given(st.text(CHARS, min_size=1, max_size=8), st.text(CHARS, max_size=8))
def test_literal_matches_its_text(text: str, other: str) -> None:
    accepts = engine_grammar.gbnf(f"root ::= {literal(text)}\n")
    assert accepts(text)
    assert accepts(other) == (other == text)


@given(st.text(CHARS, min_size=1, max_size=8), CHARS)
def test_character_outside_the_set_matches(chars: str, char: str) -> None:
    """The rule for a negated character set matches exactly one character, which can be any character outside the given
    set.
    """
    accepts = engine_grammar.gbnf(f"root ::= {none_of(chars)}\n")
    assert accepts(char) == (char not in chars)
    assert not accepts("")
    assert not accepts("zz")


def test_rules_can_refer_to_each_other() -> None:
    """A grammar rule can refer to a new name before the rule for that name has been set."""
    rules = Rules()
    name = rules.new()
    rules.set("root", rules.add(f'"(" {name} ")"'))
    rules.set(name, '"x" root?')
    accepts = engine_grammar.gbnf(rules.text())
    assert accepts("(x(x))")
    assert not accepts("(x(x)")


def test_number_of_rules_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exceeding the maximum number of grammar rules raises an exception."""
    monkeypatch.setattr(gbnf, "_MAX_RULES", 1)
    rules = Rules()
    rules.add('"x"')
    with pytest.raises(TooLarge):
        rules.add('"y"')
