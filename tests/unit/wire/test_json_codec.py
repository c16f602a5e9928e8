from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from toolsimlib.wire.json_codec import dump, dump_string


@given(st.text())
def test_a_string(text: str) -> None:
    """Any string, lone surrogates too: one line, UTF-8, and the same string when it is read."""
    written = dump_string(text)
    assert json.loads(written.encode().decode()) == text
    assert "\n" not in written


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers() | st.none(), max_size=3))
def test_a_value(value: dict[str, object]) -> None:
    """Any value: compact, one line, UTF-8."""
    written = dump(value)
    assert json.loads(written.encode().decode()) == value
    assert "\n" not in written
