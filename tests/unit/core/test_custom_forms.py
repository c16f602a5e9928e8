"""Tests for declarations of custom call forms. The error for an invalid declaration gives the number of the form and
the name of the entry.
"""

from __future__ import annotations

from typing import Any

import pytest
from toolsim.core.custom_forms import CustomForm, InvalidForm, read_forms

FORM = {"opening": "@@CALL", "closing": "@@END"}


def test_form_is_written_back_as_an_equal_table() -> None:
    """If a declared call form is read and converted back to a table, the table equals the declaration."""
    full = FORM | {"body": "json", "keys": {"name": "fn", "arguments": "with"}}
    [form] = read_forms([full])
    assert form == CustomForm("@@CALL", "@@END", "json", "fn", "with")
    assert form.table() == full
    assert read_forms([FORM])[0].table() == FORM | {"body": "any"}
    assert read_forms([]) == ()


@pytest.mark.parametrize(
    ("change", "entry", "message"),
    [
        ({"opening": None}, "opening", "got None, expected one line of 3 to 64 characters"),
        ({"opening": "@@"}, "opening", "expected one line of 3 to 64 characters"),
        ({"closing": " @@END"}, "closing", "expected one line of 3 to 64 characters"),
        ({"closing": "END"}, "closing", "expected a marker whose first character cannot begin a word or a value"),
        ({"opening": "{call}"}, "opening", "expected a marker whose first character cannot begin a word or a value"),
        ({"closing": "@@CALL"}, "closing", "which is also the opening marker"),
        ({"body": "xml"}, "body", "got 'xml', expected one of any, json, named, python, elements, pairs, braces"),
        ({"keys": {"tool": "x"}, "body": "json"}, "keys", "expected a table with the strings name and arguments"),
        ({"keys": {"name": "x"}}, "keys", "a form whose body is 'any' cannot have keys"),
        ({"name": "x"}, "name", "a form does not have this key; expected one of opening, closing, body, keys"),
    ],
)
def test_invalid_form_is_reported_with_its_number(change: dict[str, Any], entry: str, message: str) -> None:
    """The error for an invalid call form gives its number in the list and the name of the invalid entry."""
    with pytest.raises(InvalidForm) as caught:
        read_forms([FORM | {"opening": "<<a>>"}, FORM | change])
    assert (caught.value.number, caught.value.entry) == (1, entry)
    assert message in caught.value.message
    assert str(caught.value).startswith(f"forms[1].{entry}: ")


def test_forms_with_the_same_opening_marker_are_rejected() -> None:
    """Two forms with the same opening marker are rejected, because their calls could not be distinguished."""
    with pytest.raises(InvalidForm, match="is already the opening marker of another form"):
        read_forms([FORM, FORM])
