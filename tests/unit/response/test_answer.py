from __future__ import annotations

from dataclasses import replace

import pytest
from support.answers import plan
from support.turns import ADD, CALL, STRICT, chat, responses, run_events, whole_call
from toolsim.core.errors import ApiError
from toolsim.core.events import (
    BackendEvent,
    CallDelta,
    CallEnded,
    CallStarted,
    Closed,
    Counted,
    Ended,
    Failed,
    Finished,
    Opened,
    ReasoningDelta,
    StructuredCall,
    TextDelta,
    Usage,
)
from toolsim.core.plan import Plan, ToolChoice
from toolsim.core.policy import ApiName
from toolsim.core.report import Report
from toolsim.response.answer import Answer


def test_numbers_continue_after_the_history() -> None:
    """Call numbers continue after the highest number in the conversation, so that no call ID occurs twice."""
    emitted, report, _ = run_events(responses(first_number=8), [TextDelta(CALL * 2), Finished("stop"), Closed()])
    assert emitted == [*whole_call(8), *whole_call(9), Ended({0: "tool_calls"})]
    assert report.calls == ["add", "add"]
    assert report.finish == "tool_calls"


def test_each_choice_has_its_own_parser() -> None:
    """Each choice is parsed separately. For example, one choice can contain a call while another choice contains text,
    even if their deltas alternate.
    """
    events = [TextDelta(CALL[:20], 0), TextDelta("<tool_", 1), TextDelta(CALL[20:], 0), TextDelta("call is text", 1)]
    emitted, _, _ = run_events(chat(choices=2), [*events, Finished("stop", 0), Finished("length", 1), Closed()])
    assert [event for event in emitted if not isinstance(event, TextDelta)] == [
        *whole_call(1),
        Ended({0: "tool_calls", 1: "length"}),
    ]
    assert "".join(event.text for event in emitted if isinstance(event, TextDelta)) == "<tool_call is text"


def test_backend_is_cut_off_after_every_choice_has_ended() -> None:
    """toolsim stops reading the backend's stream only after every requested choice has ended early."""
    emitted, _, answer = run_events(chat(choices=2), [TextDelta(f"{CALL} tail", 0)])
    assert not answer.is_cut
    assert emitted == whole_call(1)
    assert answer.feed(TextDelta(f"{CALL} tail", 1)) == [
        *whole_call(2, choice=1),
        Ended({0: "tool_calls", 1: "tool_calls"}),
    ]
    assert answer.is_cut


def test_backend_that_ends_normally_is_not_cut_off() -> None:
    """Whitespace after the calls does not count as text, so toolsim reads the backend's stream to its normal end. Token
    counts that the backend sends after the calls reach the client.
    """
    usage = Usage(1, 2, 3)
    emitted, report, answer = run_events(chat(), [TextDelta(f"{CALL}\n\n"), Finished("stop"), Counted(usage), Closed()])
    assert emitted[-1] == Ended({0: "tool_calls"}, usage)
    assert not answer.is_cut
    assert report.tool_cutoff is None


def test_failure_releases_only_held_back_text() -> None:
    """If the backend fails, held-back text is emitted before the error, which ends the answer."""
    error = ApiError("gone", code="x")
    emitted, report, answer = run_events(
        responses(), [TextDelta("a <tool_call>{"), Failed(error), TextDelta("b"), Closed()]
    )
    assert "".join(event.text for event in emitted[:-1] if isinstance(event, TextDelta)) == "a <tool_call>{"
    assert emitted[-1] == Failed(error)
    assert answer.is_done
    assert not answer.is_cut
    assert report.error == "x"


def test_strict_failure_cuts_off_the_backend() -> None:
    """If a call violates a strict tool's schema, the answer ends with an error, and toolsim stops reading the backend's
    stream.
    """
    the_plan = plan("responses", "responses", True, [STRICT])
    emitted, report, answer = run_events(
        the_plan, [Opened(), TextDelta("a "), TextDelta(CALL.replace("1", '"x"')), Closed()]
    )
    assert isinstance(emitted[-1], Failed)
    assert emitted[-1].error.status == 422
    assert answer.is_cut
    assert len(report.strict_failures) == 1


def test_block_is_held_back_until_its_end() -> None:
    """The text of a ``<tool_call>`` block is held back until the block ends, and is then emitted as a complete call."""
    answer = Answer(responses(), Report())
    assert answer.feed(TextDelta(CALL[:-1])) == []
    assert [type(event) for event in answer.feed(TextDelta(CALL[-1]))] == [CallStarted, CallDelta, CallEnded]


def test_leading_whitespace_and_dropped_tail_are_withheld() -> None:
    """Leading whitespace is held back until text follows. If ``suppress_tail_after_tools`` is set, text after a call is
    dropped.
    """
    answer = Answer(responses(policy={"suppress_tail_after_tools": True}), Report())
    assert answer.feed(TextDelta("\n\n")) == []
    assert answer.feed(TextDelta("x")) == [TextDelta("\n\nx")]
    emitted = answer.feed(TextDelta(CALL + " tail"))
    assert [type(event) for event in emitted] == [CallStarted, CallDelta, CallEnded]
    assert answer.feed(TextDelta(" and more")) == []


def test_blocks_are_reported_by_choice() -> None:
    """Tagged blocks are reported separately for each choice, with their positions in the text of this choice. A block
    that violates a strict tool's schema is reported as a failure.
    """
    _, report, _ = run_events(chat(choices=2), [TextDelta(CALL, 1), TextDelta(f"ab{CALL}", 0), Finished("stop", 0)])
    assert [(block["choice"], block["start"]) for block in report.blocks] == [(1, 0), (0, 2)]
    _, report, _ = run_events(plan("chat", "chat", True, [STRICT]), [TextDelta(CALL.replace("1}", '"x"}'))])
    assert [block["verdicts"] for block in report.blocks] == [["failure SCHEMA_MISMATCH"]]


@pytest.mark.parametrize("client", ["chat", "messages"])
@pytest.mark.parametrize("failed", [Failed(ApiError("out", code="backend_gone")), None])
def test_failure_after_a_call_causes_a_warning(client: ApiName, failed: Failed | None) -> None:
    """If the backend fails after a call, clients of the chat and Messages APIs still receive the call as a normal
    answer. The report contains a warning.
    """
    asked = replace(plan(client, "chat", True, [ADD]), stops_after_tools=True)
    report = Report()
    answer = Answer(asked, report)
    emitted = answer.feed(TextDelta(CALL))
    emitted += answer.feed(failed) if failed is not None else answer.end_of_input()
    assert emitted == [*whole_call(1), Ended({0: "tool_calls"})]
    assert report.warnings == [f"FAILED_AFTER_CALLS:{'backend_gone' if failed else 'backend_truncated'}"]
    assert report.tool_cutoff == "backend failed after tools"
    assert answer.is_done


def test_failure_after_a_responses_call_is_an_error() -> None:
    """If a Responses stream breaks off after a call, the answer ends with an error, because more output could have
    followed the call.
    """
    answer = Answer(plan("responses", "chat", True, [ADD]), Report())
    assert answer.feed(TextDelta(CALL)) == whole_call(1)
    (failed,) = answer.end_of_input()
    assert isinstance(failed, Failed)


def test_failure_before_a_call_of_any_choice_is_an_error() -> None:
    """If the backend fails while at least one of the choices has no call yet, the answer ends with an error."""
    emitted, _, _ = run_events(chat(choices=2), [TextDelta(CALL, 0), TextDelta("x", 1), Failed(ApiError("out"))])
    assert isinstance(emitted[-1], Failed)


def test_unsatisfactory_answers_cause_warnings() -> None:
    """A missing required call causes a warning, as does an empty answer. Other answers cause no warning."""
    required = ToolChoice("required")
    for made, events, warnings in (
        (chat(tool_choice=required), [TextDelta("No.")], ["NO_CALL"]),
        (chat(tool_choice=required), [], ["NO_CALL", "EMPTY_ANSWER"]),
        (responses(), [], ["EMPTY_ANSWER"]),
        (responses(), [TextDelta("Hi")], []),
        (chat(tool_choice=required), [TextDelta(CALL)], []),
    ):
        _, report, _ = run_events(made, [*events, Finished("stop"), Closed()])
        assert report.warnings == warnings


@pytest.mark.parametrize("untagged", ["on", "off"])
@pytest.mark.parametrize("form", [None, {"type": "json_object"}], ids=["words", "json"])
def test_enforced_call_needs_no_tag(untagged: str, form: dict[str, str] | None) -> None:
    """If the backend is constrained to write calls, bare JSON is parsed as a call, even if the client requested JSON as
    the answer format.
    """
    made = chat(constraint={"type": "json_schema"}, answer_format=form, policy={"untagged": untagged})
    emitted, _, _ = run_events(made, [TextDelta('{"name": "add", "arguments": {"a":1}}'), Finished("stop"), Closed()])
    assert emitted == [*whole_call(1), Ended({0: "tool_calls"})]


def test_enforced_list_of_calls_needs_no_tag() -> None:
    """If the backend is constrained to write calls, an untagged JSON list becomes calls without any text, wherever the
    list is split.
    """
    text = '[\n  {"name": "add", "arguments": {"a":1}},\n  {"name": "add", "arguments": {"a":1}}\n]'
    for cut in range(len(text)):
        pieces = [TextDelta(part) for part in (text[:cut], text[cut:]) if part]
        emitted, _, _ = run_events(chat(constraint={"type": "json_schema"}), [*pieces, Finished("stop"), Closed()])
        assert emitted == [*whole_call(1), *whole_call(2), Ended({0: "tool_calls"})]


def test_call_after_an_early_end_is_dropped() -> None:
    """A structured call that arrives after the turn has ended is dropped without a warning."""
    late = StructuredCall("add", '{"a":1}')
    _, report, _ = run_events(chat(choices=2), [TextDelta(f"{CALL} tail", 0), late, Closed()])
    assert report.tool_cutoff == "text after tools"
    assert report.warnings == []


def test_violation_is_judged_at_the_end() -> None:
    """Even if its closing tag is missing, an invalid call to a strict tool causes an error at the end of the answer."""
    bad = '<tool_call>{"name":"add","arguments":{"a":"x"}}'
    emitted, report, _ = run_events(plan("chat", "chat", True, [STRICT]), [TextDelta(bad), Closed()])
    assert isinstance(emitted[-1], Failed)
    assert emitted[-1].error.code == report.error == "invalid_tool_call"
    assert not any(isinstance(event, Ended) for event in emitted)


def test_client_model_name_is_restored() -> None:
    """If the model has another name at the backend, the answer contains the name that the client used. Otherwise, the
    answer contains the name that the backend sent.
    """
    events = [Opened(model="qwen"), TextDelta("Hi"), Finished("stop"), Closed()]
    for name, model in (("qwen", None), ("", "qwen")):
        emitted, _, _ = run_events(chat(policy={"backend_model": name}), events)
        assert emitted[0] == Opened(model=model)


def ended(answer: Answer, *events: BackendEvent) -> Ended:
    """Return the ``Ended`` event, which is the last event of an answer, for the given backend events."""
    last = [emitted for event in (*events, Closed()) for emitted in answer.feed(event)][-1]
    assert isinstance(last, Ended)
    return last


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        (None, Usage(70, 5, 75, estimated=True)),
        (Usage(0, 0, 0), Usage(70, 5, 75, estimated=True)),
        (Usage(0, 4, 4, reasoning_tokens=2), Usage(70, 4, 74, reasoning_tokens=2, estimated=True)),
        (Usage(60, 0, 60, cached_tokens=50), Usage(60, 5, 65, cached_tokens=50, estimated=True)),
        (Usage(60, 4, 64), Usage(60, 4, 64)),
    ],
)
def test_missing_token_counts_are_estimated(counted: Usage | None, expected: Usage) -> None:
    """Only missing token counts are estimated. The estimate includes all reasoning, text and calls in the answer."""
    written: list[str] = []

    def estimate(text: str) -> Usage:
        written.append(text)
        return Usage(70, 5, 75, estimated=True)

    answer = Answer(plan("responses", "chat", True, tools=[ADD]), Report(), estimate=estimate)
    counts = [Counted(counted)] if counted is not None else []
    events = [ReasoningDelta("Hm. "), TextDelta("So: "), StructuredCall("add", '{"a":1,"b":2}'), Finished("stop")]
    assert ended(answer, *events, *counts).usage == expected
    assert written == ['Hm. So: add({"a":1,"b":2})\n'] * expected.estimated


def test_empty_answer_keeps_zero_output_tokens() -> None:
    """If the answer is empty, a reported count of zero output tokens is kept."""
    answer = Answer(plan("responses", "chat", True), Report(), estimate=lambda _: Usage(70, 0, 70, estimated=True))
    assert ended(answer, Counted(Usage(60, 0, 60))).usage == Usage(60, 0, 60)


def test_unrequested_usage_is_not_estimated() -> None:
    """If a chat client has not requested usage, usage is not estimated or returned."""

    def estimate(_: str) -> Usage:
        raise AssertionError

    answer = Answer(chat_plan(include_usage=False), Report(), estimate=estimate)
    assert ended(answer, TextDelta("Hi")).usage is None


def chat_plan(*, include_usage: bool) -> Plan:
    asked = plan("chat", "chat", True)
    return replace(asked, form=replace(asked.form, include_usage=include_usage))
