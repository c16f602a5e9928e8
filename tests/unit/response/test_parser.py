from __future__ import annotations

from typing import Any

import pytest
from support.answers import plan
from support.turns import ADD
from toolsim.core.report import Report
from toolsim.response.choice import parser_for
from toolsim.response.judge import Judge
from toolsim.response.quotation import Quotation
from toolsim.response.untagged import Untagged


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, Untagged),
        ({"policy": {"untagged": "off"}}, Quotation),
        ({"answer_format": {"type": "json_object"}}, Untagged),
        ({"policy": {"untagged": "off"}, "constraint": {"type": "json_schema"}}, Untagged),
    ],
)
def test_the_plan_chooses_the_parser(fields: dict[str, Any], kind: type) -> None:
    """What is untagged counts unless that is switched off and the backend was not constrained to write a call."""
    the_plan = plan("chat", "chat", True, [ADD], **fields)
    assert type(parser_for(the_plan, Judge(the_plan, Report()))) is kind


def test_without_tools_all_text_is_text() -> None:
    """There is nothing to look for."""
    the_plan = plan("chat", "chat", True)
    assert parser_for(the_plan, Judge(the_plan, Report())) is None
