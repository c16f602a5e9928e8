from __future__ import annotations

import pytest
from support.answers import plan
from support.turns import STRICT, chat, run_events
from toolsim.core.events import Closed, Finished, TextDelta
from toolsim.response.sentinel import LostCalls

END = "</tool_call>"


@pytest.mark.parametrize(
    ("text", "count"),
    [(f"not json{END}", 1), (f"a{END}b{END}", 1), ("talk", 0), ("x" * 5_000 + END, 0), (f"{END}", 1)],
)
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_only_first_closing_tag_counts(text: str, count: int, size: int) -> None:
    """For each opening tag, at most one lost call is counted, at the first closing tag within the maximum distance."""
    found: list[int] = []
    lost = LostCalls(lambda: found.append(1))
    lost.feed(text)
    lost.open(END)
    assert lost.is_searching
    for at in range(0, len(text), size):
        lost.feed(text[at : at + size])
    assert len(found) == count
    lost.open(END)
    lost.close()
    lost.feed(END)
    assert len(found) == count


@pytest.mark.parametrize(
    ("text", "finish", "count"),
    [
        # With a strict tool, this block would make the answer fail if the answer contained no other text.
        ("Now <tool_call>not json</tool_call>", "stop", 1),
        ("Now <tool_call>add(1)</tool_call> and <tool_call> {x} </tool_call>.", "stop", 2),
        ("<use_tool>add it</use_tool>", "stop", 1),
        ("<tool_call>a <tool_call>b", "stop", 0),
        ("write <tool_call> for a call", "stop", 0),
        ('<tool_call>{"name":"add","arg', "stop", 1),
        ('<tool_call>{"name":"add","arg', "length", 0),
        ("<think><tool_call>x</tool_call></think>", "stop", 0),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_unjudged_block_is_counted(text: str, finish: str, count: int, strict: bool) -> None:
    """A tagged block counts as a parse failure if its body is not a call, or if it breaks off although no token limit
    was reached. The block remains text, wherever the text is split. A mere mention of the tag is not counted.
    """
    the_plan = plan("chat", "chat", True, [STRICT]) if strict else chat()
    for size in (1, 2, 7, len(text)):
        pieces = [TextDelta(text[i : i + size]) for i in range(0, len(text), size)]
        emitted, report, _ = run_events(the_plan, [*pieces, Finished(finish), Closed()])  # type: ignore[arg-type]
        assert "".join(event.text for event in emitted if isinstance(event, TextDelta)) == text
        assert report.parse_failures == ["MALFORMED_JSON"] * count
        assert report.strict_failures == []
