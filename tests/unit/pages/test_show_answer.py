import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan as plan_for
from support.growth import LINEAR, growth
from support.wire import ApiName, backend_answer
from toolsim.core.plan import Tool
from toolsim.core.report import Report
from toolsim.pages.show_answer import AnswerFacts, show_answer
from toolsim.response.rewrite import ResponseRewriter

LAX = Tool("get_weather", "get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
STRICT = Tool("pay", "pay", strict=True, parameters={"type": "object", "required": ["sum"]})
CALL = '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Bonn\\"}"}</tool_call>'
COMMA = '<tool_call>{"name":"get_weather","arguments":{"city":"Köln",}}</tool_call>'
UNKNOWN = '<tool_call>{"name":"gone","arguments":"{}"}</tool_call>'
BAD_PAY = '<tool_call>{"name":"pay","arguments":"{}"}</tool_call>'

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def exchange(
    text: str, *, api_name: ApiName = "responses", stream: bool = True, tools: Sequence[Tool] = (LAX,), **policy: Any
) -> tuple[bytes, bytes, dict[str, Any]]:
    """Convert an answer that contains ``text``. Return the backend's bytes, the bytes for the client, and the
    report.
    """
    kind, received = backend_answer(api_name, stream, [text[at : at + 7] for at in range(0, len(text), 7)])
    report = Report(client=api_name, backend=api_name, model="m", stream=stream)
    plan = plan_for(api_name, api_name, stream, tools, policy=policy)
    rewriter = ResponseRewriter(plan, report, content_type=kind)
    sent = b"".join(rewriter.feed(received) + rewriter.feed(b""))
    return received, sent, report.as_dict()


@pytest.mark.parametrize("api_name", ["chat", "responses"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_both_sides_of_an_answer(api_name, stream):
    """The page for an answer shows the blocks that the model wrote, with their verdicts, and the calls that the client
    received, with their arguments.
    """
    text = f"Both:\n{CALL}\n{COMMA}\n{UNKNOWN}"
    received, sent, report = exchange(text, api_name=api_name, stream=stream, stop_after_tools="off")
    page = show_answer(sent, AnswerFacts(report=report, received=received))
    wrote, _, got = page.partition("THE CLIENT GOT")
    assert "  Both:\n" in wrote
    assert '\\"Bonn\\"}"}</tool_call>\n  ╰─ ✓ call of get_weather\n' in wrote
    assert "╰─ ✓ call of get_weather · repaired: TRAILING_COMMA\n" in wrote
    assert "╰─ ✗ left as text: the tool is not on offer (UNKNOWN_TOOL)\n" in wrote
    kind = "fc" if api_name == "responses" else "call"
    assert f'  → get_weather   {kind}_001\n    {{"city": "Bonn"}}\n' in got
    assert f'  → get_weather   {kind}_002\n    {{"city": "Köln"}}\n' in got
    assert "parse failures  UNKNOWN_TOOL:gone" in got
    assert page.startswith("ANSWER · 200 · ")
    assert "tool_calls" in page.partition("\n \n")[0]


def test_strict_failure_is_explained():
    """If a block makes the answer fail, the answer's page shows the block, the reason, and the error that the client
    received.
    """
    received, sent, report = exchange(f"a{BAD_PAY}", tools=(STRICT,))
    page = show_answer(sent, AnswerFacts(report=report, received=received))
    assert "╰─ ✗ ends the answer with an error: its arguments do not match the tool's schema" in page
    assert "ERROR  invalid_request_error · invalid_tool_call · tools ──" in page
    assert "failed: invalid_tool_call" in page


def test_invalid_call_is_shown_with_a_warning():
    """If a call violates the tool's schema but is forwarded, the page shows it with a warning, the reason and the
    location.
    """
    lax = replace(STRICT, strict=False)
    received, sent, report = exchange(BAD_PAY, tools=(lax,))
    page = show_answer(sent, AnswerFacts(report=report, received=received))
    assert "╰─ ⚠ call of pay · its arguments do not match the tool's schema (SCHEMA_MISMATCH)\n" in page
    assert "  mismatches  pay:/: lacks sum\n" in page


def test_untagged_call_is_not_shown_as_repaired():
    """If a call has no tag, the page states how it was recognized, and does not show it as repaired."""
    received, sent, report = exchange('{"name": "get_weather", "arguments": {"city": "Bonn"}}')
    page = show_answer(sent, AnswerFacts(report=report, received=received))
    assert "╰─ ✓ call of get_weather · without a tag: UNTAGGED_BARE\n" in page
    assert "repair" not in page


def test_empty_answer_suggests_a_remedy():
    """If an answer is empty, its page suggests ``toolsim_fix_empty_final``, unless the answer has already
    been retried.
    """
    report = {"warnings": ["EMPTY_ANSWER"]}
    assert "toolsim_fix_empty_final=on" in show_answer(b"", AnswerFacts(report=report))
    assert "toolsim_fix_empty_final=on" not in show_answer(
        b"", AnswerFacts(report=report | {"retries": ["EMPTY_ANSWER"]})
    )


def test_call_over_the_limit_is_shown_as_skipped():
    """If an answer contains more calls than the limit allows, the page shows each valid call beyond the limit as
    skipped, not as failed. The answer does not count as ended early.
    """
    received, sent, report = exchange(CALL + COMMA, tool_block_max=1, stop_after_tools="off")
    page = show_answer(sent, AnswerFacts(report=report, received=received))
    assert "╰─ – passed over get_weather" in page
    assert "OVER_LIMIT:get_weather" in page
    assert "ended early" not in page


def test_unchanged_text_is_shown_once():
    """If the client received exactly the text that the model wrote, the page for the answer shows the text only
    once.
    """
    received, sent, report = exchange("Just words.")
    page = show_answer(sent, AnswerFacts(report=report, received=received))
    assert page.count("Just words.") == 1
    assert "The client got the same text." in page


def test_single_side_of_an_answer():
    """If only the model's text or only the client's answer is available, the page shows it with the verdicts in the
    report. Without a report, blocks are recognized by their tags.
    """
    received, sent, report = exchange(f"a {CALL}")
    own = show_answer(received, AnswerFacts(report=report, own=True))
    assert "THE MODEL WROTE" in own
    assert "╰─ ✓ call of get_weather" in own
    found = show_answer(received, AnswerFacts())
    assert "│ <tool_call>" in found
    assert "╰─ a block" in found
    client = show_answer(sent, AnswerFacts(report=report))
    assert "THE ANSWER" in client
    assert "→ get_weather   fc_001" in client


def test_missing_bytes_are_reported():
    """The page for an answer states how many bytes were not recorded. It also states if the client received none of the
    model's text.
    """
    received, sent, report = exchange("Words.")
    with_missing = report | {"missing_bytes": {"client": 1234567, "backend": 89}}
    page = show_answer(sent, AnswerFacts(report=with_missing, received=received))
    assert "⚠ 1,234,567 more bytes of the client's answer were forwarded, but not recorded." in page
    assert "⚠ 89 more bytes of the backend's answer" in page
    empty = show_answer(b"", AnswerFacts(report=report | {"error": "aborted", "tool_cutoff": "2 calls"}))
    assert "The client received none of this text." in empty
    assert "failed: aborted" in empty
    assert "ended early  2 calls" in empty


def test_other_kinds_of_output():
    """On the page for an answer, reasoning, refusals, custom calls and hosted items each have a separate format."""
    items = [
        {"type": "reasoning", "summary": [{"text": "Hm."}]},
        {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "custom_tool_call", "call_id": "ctc_1", "name": "patch", "namespace": "ns", "input": "*** a\n--- b"},
        {"type": "web_search_call", "id": "ws_1"},
    ]
    page = show_answer(json.dumps({"object": "response", "output": items}).encode(), AnswerFacts())
    assert "  (reasoning)\n  │ Hm.\n" in page
    assert "  (refusal)\n  │ No.\n" in page
    assert "  → ns.patch   ctc_1\n    ┆ *** a\n    ┆ --- b\n" in page
    assert "(web_search_call, as sent by the backend)" in page


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"<html>busy</html>", "<html>busy</html>"),
        (b'{"detail":"no"}', '{"detail": "no"}'),
        (b" \n", "Only whitespace."),
        (b'{"error":{"message":"Slow down.","type":"rate_limit_error"}}', "Slow down."),
        (b'{"object":"response","output":[]}', "is empty."),
    ],
)
def test_other_bodies(data, words):
    """If the body is an error, the page shows its message. If it is not an answer, the page shows it unchanged."""
    assert words in show_answer(data, AnswerFacts(status=429))


def test_facts_in_the_title():
    """The title of an answer's page shows the token counts and the times, if they are known."""
    _received, sent, report = exchange("Words.")
    title = show_answer(sent, AnswerFacts(report=report, first_byte=0.25, seconds=1.5)).partition("\n \n")[0]
    assert "3 tokens in, 4 out" in title
    assert "1.50 s (first byte 0.25 s)" in title


@given(
    data=st.binary(max_size=100) | st.builds(lambda value: json.dumps(value).encode(), JSON),
    received=st.none() | st.binary(max_size=100),
    report=st.none()
    | JSON
    | st.fixed_dictionaries({}, optional=dict.fromkeys((*Report().as_dict(), "missing_bytes"), JSON)),
    own=st.booleans(),
)
def test_any_bytes_and_report_result_in_a_page(data, received, report, own):
    """The page for an answer can be created for any bytes and any report that a flow file can contain."""
    assert show_answer(data, AnswerFacts(report=report, received=received, own=own)).startswith("ANSWER")  # type: ignore[arg-type]


@given(st.lists(st.sampled_from([CALL, UNKNOWN, "<tool_call>", "</tool_call>", "a", "\n", "{", '"', "<think>", "é"])))
def test_all_text_is_on_the_page(parts):
    """The page for an answer contains all text that the model wrote, in prose or in blocks."""
    text = "".join(parts)
    received, _sent, report = exchange(text)
    page = show_answer(received, AnswerFacts(report=report, own=True))
    shown = "".join(
        line for line in page.partition("THE MODEL WROTE")[2].partition("REPORT")[0] if line not in " \n─│╰✓✗–"
    )
    for part in parts:
        assert "".join(part.split()) in shown


@pytest.mark.slow
def test_time_is_linear():
    """The time for showing an answer grows linearly with the size of its text, regardless of its content."""
    for unit, end in (("x", ""), ("\n", ""), ("<tool_call>", ""), (CALL, ""), (" ", "x")):

        def show(size: int, unit: str = unit, end: str = end) -> None:
            text = unit * (size // len(unit)) + end
            show_answer(json.dumps({"choices": [{"message": {"content": text}}]}).encode(), AnswerFacts())

        assert growth(show, 100_000) < LINEAR, unit
