from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan
from support.each import each
from toolsim.core.events import (
    CallDelta,
    CallStarted,
    ClientEvent,
    Closed,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
)
from toolsim.core.plan import Plan, Tool
from toolsim.core.report import Report
from toolsim.response.answer_format import HeldAnswer
from toolsim.response.choice import parser_for
from toolsim.response.judge import Judge
from toolsim.response.retry import CALL_FAULTS, Retry
from toolsim.response.rewrite import answer_for
from toolsim.response.verdict import ANSWER_MISMATCH

FOLDER = Path(__file__).parents[2] / "cases"
TABLE = json.loads((FOLDER / "answer_format.json").read_text(encoding="utf-8"))
TOOLS = json.loads((FOLDER / "untagged.json").read_text(encoding="utf-8"))
CALL = '{"name": "get_weather", "arguments": {"city": "Bonn"}}'
FAULTS = CALL_FAULTS | {ANSWER_MISMATCH}
every_case = each("case", TABLE["cases"], ids=lambda case: case["case"])


def plan_of(form: str, **fields: Any) -> Plan:
    tools = [Tool(wire_name=tool["name"], **tool) for tool in TOOLS["tools"]]
    masked = frozenset(TOOLS["masked"])
    return plan("chat", "chat", True, tools, masked_tools=masked, answer_format=TABLE["formats"][form], **fields)


def answer(
    the_plan: Plan, chunks: list[str], finish: FinishReason = "stop"
) -> tuple[list[list[str]], Report, Retry | None]:
    """Return the texts and calls that the client receives, the report, and the retry, if any."""
    whole = answer_for(the_plan, report := Report())
    emitted: list[ClientEvent] = [event for chunk in chunks for event in whole.feed(TextDelta(chunk))]
    emitted += [*whole.feed(Finished(finish)), *whole.feed(Closed())]
    items: list[list[str]] = []
    for event in emitted:
        match event:
            case TextDelta(text) if items and items[-1][0] == "text":
                items[-1][1] += text
            case TextDelta(text):
                items.append(["text", text])
            case CallStarted(name=name):
                items.append(["call", name, ""])
            case CallDelta(text):
                items[-1][2] += text
    return items, report, whole.retry


@every_case
def test_case(case: dict[str, Any]) -> None:
    """Each case yields the expected items and warning, whether it arrives as one delta, character by character, or as
    two deltas.
    """
    text = case["text"]
    for chunks in ([text], list(text), *([text[:cut], text[cut:]] for cut in range(1, len(text), 3))):
        items, report, retry = answer(plan_of(case["format"]), chunks)
        assert items == case.get("items", [["text", text]])
        assert [warning for warning in report.warnings if warning == "ANSWER_MISMATCH"] == [
            "ANSWER_MISMATCH"
        ] * case.get("warns", False)
        assert any(where.startswith("answer:") for where in report.mismatches) == case.get("warns", False)
        assert retry is None


@every_case
def test_nonconforming_answer_is_retried(case: dict[str, Any]) -> None:
    """If retries are allowed, an answer that does not conform to the requested format is held back and retried. A
    conforming answer is not affected.
    """
    text, the_plan = case["text"], plan_of(case["format"], retries_allowed=FAULTS)
    for chunks in ([text], list(text)):
        items, report, retry = answer(the_plan, chunks)
        if not case.get("warns"):
            assert (items, retry) == (case.get("items", [["text", text]]), None)
            continue
        assert items == []
        assert retry is not None
        assert retry.words == text
        assert retry.fault.expected
        assert retry.otherwise[0] == TextDelta(text)
        assert "ANSWER_MISMATCH" not in report.warnings
        if "a call" not in case["case"]:
            assert retry.fault.reason == "ANSWER_MISMATCH"


@given(
    st.lists(st.sampled_from([CALL, '{"sky": ', '"clear"}', "}", "\n", "words ", "```json\n", "```", " "]), max_size=6)
)
def test_retries_and_splits_do_not_change_the_output(scraps: list[str]) -> None:
    """The client receives the same output whether or not retries are allowed, and however the text is split."""
    text = "".join(scraps)
    for form in ("report", "loose", "object", "plan"):
        items, report, _ = answer(plan_of(form), [text])
        assert answer(plan_of(form), list(text))[0] == items
        held, again, retry = answer(plan_of(form, retries_allowed=FAULTS), list(text))
        assert "".join(item[-1] for item in held) == ("" if retry and not held else "".join(item[-1] for item in items))
        assert again.calls == report.calls


def test_json_is_emitted_once_ruled_out_as_a_call() -> None:
    """JSON in the requested format is sent to the client as soon as one of its keys shows that it is not a call."""
    whole = answer_for(plan_of("report"), Report())
    emitted = "".join(
        event.text for char in '{"city": "Bo' for event in whole.feed(TextDelta(char)) if isinstance(event, TextDelta)
    )
    assert emitted == '{"city": "Bo'


def test_truncated_answer_is_not_retried() -> None:
    """An answer that was cut off by the length limit is not retried, and causes no warning about its format."""
    items, report, retry = answer(plan_of("report", retries_allowed=FAULTS), ['{"city": "Bo'], "length")
    assert (items, retry) == ([["text", '{"city": "Bo']], None)
    assert "ANSWER_MISMATCH" not in report.warnings


@each("finish", ["stop", "length"])
@each("words", ["", "Let me look.\n"])
def test_incomplete_call_is_retried_as_a_faulty_call(finish: FinishReason, words: str) -> None:
    """If an answer that should be JSON contains an incomplete call, the retry asks the model to correct the call rather
    than the format.
    """
    text = f"{words}<tool_call>{CALL[:-9]}"
    _, _, retry = answer(plan_of("report", retries_allowed=FAULTS), list(text), finish)
    assert retry is not None
    assert retry.fault.reason == ("MALFORMED_JSON" if finish == "stop" else "CALL_CUT_OFF")
    assert retry.words == text


def test_answer_next_to_other_content_is_released() -> None:
    """An answer that might have to be retried is held back, even if reasoning came before it. However, the answer is
    released if reasoning follows it, or if its text is too long.
    """
    whole = answer_for(plan_of("report", retries_allowed=FAULTS), Report())
    assert whole.feed(ReasoningDelta("Hm.")) == [ReasoningDelta("Hm.")]
    assert whole.feed(TextDelta("It is")) == []
    assert whole.feed(ReasoningDelta("So.")) == [TextDelta("It is"), ReasoningDelta("So.")]
    assert whole.feed(TextDelta(" clear.")) == [TextDelta(" clear.")]
    the_plan = plan_of("report", retries_allowed=FAULTS, policy={"max_tool_bytes": 10})
    assert answer_for(the_plan, Report()).feed(TextDelta("x" * 5000)) == [TextDelta("x" * 5000)]
    parser = parser_for(the_plan, Judge(the_plan, Report()))
    assert isinstance(parser, HeldAnswer)
    parser.feed("x")
    assert "holding" in repr(parser)


def test_format_is_not_checked_without_tools() -> None:
    """If the request has no tools, toolsim does not check the answer's format, because the backend enforces it."""
    the_plan = plan("chat", "chat", True, [], answer_format=TABLE["formats"]["report"])
    assert answer(the_plan, ["words"])[1].warnings == []
