from __future__ import annotations

import contextlib
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from support.pauses import pause
from toolsim.schema import SchemaError, compile_schema, patterns
from toolsim.schema.patterns import MAX_ATOMS, atoms, check_pattern


@each(
    ("text", "size"),
    [
        ("", 0),
        ("abc", 3),
        (r"^\d{3}-\d{4}$", 10),
        ("[a-z{9}]{2}", 2),
        (r"[]a]{2}[^]\]]{3}", 5),
        ("a{0,1000}", 1),
        ("a{5,}", 5),
        ("(?:ab){3}", 6),
        ("(?P<name>ab){3}(?=x){2}", 8),
        ("(a(b{2}c){3}){4}", 40),
        ("(?:(?:a{1000}){1000}){1000}", 10**9),
        ("a{" + "9" * 5000 + "}", 999_999),
    ],
)
def test_pattern_size_counts_atoms(text: str, size: int) -> None:
    """The size of a pattern is the number of its atoms after minimum repeats have been expanded. A character class or
    an escape counts as one atom.
    """
    assert atoms(text) == size


@pytest.mark.parametrize("text", ["(?:(?:a{1000}){1000}){1000}", "x" * (MAX_ATOMS + 1), "(?:ab{100}){100}"])
def test_oversized_pattern_is_never_compiled(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that exceeds the size limit is rejected before it is compiled, and the error states the limit."""
    monkeypatch.setattr("regex.compile", lambda _text: pytest.fail("compiled"))
    with pytest.raises(SchemaError, match=f"expected at most {MAX_ATOMS} atoms"):
        check_pattern(text)


def test_patterns_up_to_the_limit_are_accepted() -> None:
    """The limit on atoms applies both to a single pattern and to several patterns together. Reaching it exactly is
    permitted.
    """
    assert check_pattern("x" * MAX_ATOMS) == MAX_ATOMS
    assert check_pattern("x", MAX_ATOMS - 1) == 1


def test_patterns_of_a_schema_share_a_limit() -> None:
    """All patterns in a schema share one limit, because a schema of 64 kB can contain thousands of small patterns."""
    few = {f"a{number}": {"pattern": f"^(?:x{number}){{200}}$"} for number in range(3)}
    validator = compile_schema({"properties": few})
    assert validator.atoms == 3 * 402
    many = {f"a{number}": {"pattern": f"^(?:x{number}){{200}}$"} for number in range(100)}
    with pytest.raises(SchemaError, match="in addition to 48"):
        compile_schema({"properties": many})


@pytest.mark.parametrize("text", [r"^[\s\S]{0,100000}$", r"^[0-9a-f]{64}$", "^(?:[a-z]{1,63}\\.)+[a-z]{2,}$"])
def test_patterns_for_long_values_are_accepted(text: str) -> None:
    check_pattern(text)


@given(st.text(alphabet="ab(){}[]\\?:,019|*+<>P", max_size=40))
def test_any_pattern_is_compiled_or_refused(text: str) -> None:
    """For any text, the size of the pattern can be computed, and compiling it either succeeds or raises SchemaError."""
    assert atoms(text) >= 0
    with contextlib.suppress(SchemaError):
        compile_schema({"pattern": text}).check("ab")


def test_interrupted_search_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause during a short pattern search hardly counts toward the time budget, so enough time remains for the next
    search.
    """

    class Interrupted:
        def __init__(self, text: str) -> None:
            self._text = text

        def search(self, text: str, timeout: float) -> Any:
            found = regex.search(self._text, text, timeout=timeout)
            pause()
            return found

    schema = {"properties": {"a": {"pattern": "^x"}, "b": {"pattern": "^x"}}}
    validator = compile_schema(schema)
    monkeypatch.setattr(patterns, "_compiled", Interrupted)
    finding = validator.examine({"a": "x", "b": "y"}, 0.015)
    assert finding.settled
    assert finding.mismatch is not None


def test_search_has_two_attempts() -> None:
    """If a pattern search exceeds its first time limit, it is repeated with all the time that remains."""
    finding = compile_schema({"pattern": "^(a|a)*$"}).examine("a" * 18 + "!", 3)
    assert finding.settled
    assert finding.mismatch is not None
