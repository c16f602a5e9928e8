from __future__ import annotations

from typing import Any

import pytest
from support.answers import plan
from support.turns import ADD
from toolsim.core.report import Report
from toolsim.response.choice import parser_for
from toolsim.response.judge import Judge
from toolsim.response.segments import Calls


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, True),
        ({"policy": {"untagged": "off"}}, False),
        ({"answer_format": {"type": "json_object"}}, True),
        ({"policy": {"untagged": "off"}, "constraint": {"type": "json_schema"}}, True),
    ],
)
def test_plan_selects_the_parser(fields: dict[str, Any], counts: bool) -> None:
    """Untagged calls are parsed only if ``untagged`` is on or if the backend is constrained to write calls."""
    the_plan = plan("chat", "chat", True, [ADD], **fields)
    parser = parser_for(the_plan, Judge(the_plan, Report()))
    assert parser is not None
    pieces = [*parser.feed("add(a=1)"), *parser.finish()]
    assert [isinstance(piece, Calls) for piece in pieces] == [counts]


def test_no_parser_without_tools() -> None:
    """No parser is created for a request without tools, because the answer cannot contain calls."""
    the_plan = plan("chat", "chat", True)
    assert parser_for(the_plan, Judge(the_plan, Report())) is None
