from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from toolsim.pages.blocks import prose_and_blocks

CALL = '<tool_call>{"name":"f","arguments":"{}"}</tool_call>'


def test_text_is_split_into_prose_and_blocks() -> None:
    """The model's text is split into prose and call blocks. If the operator has configured a private tag, only blocks
    with that tag count as calls.
    """
    mine = CALL.replace("tool_call", "mine")
    assert list(prose_and_blocks(f"a {CALL}{CALL} b")) == [("a ", False), (CALL, True), (CALL, True), (" b", False)]
    assert list(prose_and_blocks(f"{CALL}{mine}", "mine")) == [(CALL, False), (mine, True)]
    assert list(prose_and_blocks("")) == []


@given(
    st.lists(st.sampled_from([CALL, "<tool_call>{", "</tool_call>", "x" * 300_000, "<use_tool><name>f</name>", " "]))
)
def test_joined_pieces_restore_the_text(parts: list[str]) -> None:
    text = "".join(parts[:6])
    assert "".join(piece for piece, _ in prose_and_blocks(text)) == text
