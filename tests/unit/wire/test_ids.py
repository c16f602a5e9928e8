import pytest
from support.each import each
from toolsim.wire.ids import chat_call_id, highest_number, responses_call_id


@each("call_id", [chat_call_id, responses_call_id])
@each("kind", ["function", "custom"])
@each("number", [1, 999, 1000])
def test_toolsim_ids_are_recognized(call_id, kind, number):
    """Every call ID that toolsim creates is recognized as toolsim's when it appears in a history."""
    assert highest_number([call_id(kind, number), "x"]) == number


@pytest.mark.parametrize("ids", [[], ["call_abc"], ["fc_"], ["a_fc_3"], ["fc_3x"], ["call_" + "9" * 16]])
def test_other_ids_do_not_count(ids):
    """Call IDs that other programs created, and numbers too large for toolsim, do not affect the numbering."""
    assert highest_number(ids) == 0
