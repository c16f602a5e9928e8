from __future__ import annotations

import pytest
from toolsimlib.response.thought import Thought


@pytest.mark.parametrize(
    ("text", "prose"),
    [
        ("Hi", ""),
        (" \n Hi", " \n "),
        ("<think>a</think>b", "<think>a</think>"),
        ("\u00a0\x0b\u2028<think>a</think>b", "\u00a0\x0b\u2028<think>a</think>"),
        ("\n<think>a</th</think><think>", "\n<think>a</th</think>"),
        ("<think>open", "<think>open"),
        ("<thin", ""),
        ("<thing>", ""),
        (" ", " "),
        ("", ""),
    ],
)
def test_where_it_ends(text: str, prose: str) -> None:
    """Whitespace and a thought at the start are prose, up to where something else may begin; at any cut."""
    for size in (1, 2, 5, len(text) or 1):
        thought, held, emitted = Thought(), "", ""
        for piece in [text[i : i + size] for i in range(0, len(text), size)]:
            if thought.is_over:
                break
            held += piece
            end = thought.end(held, 0, final=False)
            emitted, held = emitted + held[:end], held[end:]
        if not thought.is_over:
            end = thought.end(held, 0, final=True)
            emitted += held[:end]
        assert emitted == prose
        assert thought.is_over == (prose != text and bool(text))
