from __future__ import annotations

from typing import Any

import pytest
from support.answers import plan, tool
from toolsimlib.plan import ApiName
from toolsimlib.report import Report
from toolsimlib.response.judge import Judge
from toolsimlib.response.parser import parser_for
from toolsimlib.response.parting import Parting
from toolsimlib.response.retry import FaultFinder

LINE = ["\n", "\n"]  # Line by line, as the parser reads.


def parting(client: ApiName, *texts: str, **policy: Any) -> Parting:
    the_plan = plan(client, "responses", True, [tool("f")], policy=policy)
    parser = parser_for(the_plan, Judge(the_plan, Report()))
    assert parser is not None
    for text in texts:
        parser.feed(text)
    return Parting(the_plan, parser, FaultFinder(the_plan))


def test_directly_behind_text() -> None:
    """The empty line counts there, and so does that a message has ended, until other text or a call follows."""
    for client in ("chat", "responses"):
        between = parting(client, "Hi")  # type: ignore[arg-type]
        between.spoke()
        assert between.pieces(is_speaking=True) == LINE
        assert between.pieces(is_speaking=False) == LINE
        between.called()
        assert between.pieces(is_speaking=False) == (LINE if client == "chat" else [])


def test_behind_something_else() -> None:
    """Only a client that has a single text needs the line, and only if there was text before."""
    listed, joined = parting("responses", "Hi"), parting("chat", "Hi")
    assert listed.pieces(is_speaking=False) == joined.pieces(is_speaking=False) == []
    listed.spoke()
    joined.spoke()
    assert listed.pieces(is_speaking=False) == []
    assert joined.pieces(is_speaking=False) == LINE


@pytest.mark.parametrize(("held", "pieces"), [("a <tool_", ["<tool_\n\n"]), ('<tool_call>{"name":"f', [])])
def test_what_the_parser_holds_back(held: str, pieces: list[str]) -> None:
    """The line joins text that is held back, and does not get into a block."""
    assert parting("responses", held, untagged="off").pieces(is_speaking=False) == pieces
