from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan, tool
from toolsim.core.events import CallStarted, Closed, Finished, StructuredCall, TextDelta
from toolsim.core.plan import AnswerForm, Plan
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.response.answer import Answer
from toolsim.response.client_calls import ClientCalls, SeenCalls
from toolsim.response.verdict import JudgedCall


@pytest.mark.parametrize(
    ("plan", "limit"),
    [
        (Plan("chat", "chat"), 0),
        (Plan("chat", "chat", policy=Policy(tool_block_max=3)), 3),
        (Plan("chat", "chat", one_call=True, policy=Policy(tool_block_max=3)), 1),
        (Plan("chat", "chat", AnswerForm(legacy_functions=True)), 1),
    ],
)
def test_smallest_limit_counts(plan: Plan, limit: int) -> None:
    """The lowest of three limits on calls applies: the client's, the operator's, and the limit of one call for legacy
    ``functions``. A limit of 0 is ignored.
    """
    calls = ClientCalls(plan, Report(), count(1), 0)
    for _ in range(limit or 100):
        assert not calls.is_exhausted
        assert calls.make(JudgedCall(tool("f"), "{}")).made
    assert calls.is_exhausted == bool(limit)
    assert calls.make(JudgedCall(tool("f"), "{}")).made != bool(limit)


def test_call_in_both_forms_counts_once() -> None:
    """A call that occurs both as text and as a structured call counts once. If ``drops_all`` is set, all repetitions
    are dropped.
    """
    once, never = SeenCalls(drops_all=False), SeenCalls(drops_all=True)
    kinds = (False, False, True)
    assert [once.take("f", "{}", structured=kind) for kind in kinds] == [False, False, True]
    assert [never.take("f", "{}", structured=kind) for kind in kinds] == [False, True, True]


A, B = ("f", '{"a": 1, "b": [1.0]}'), ("f", '{"a": 2}')
A_AGAIN = ("f", '{"b":[1],"a":1.0}')


@given(st.lists(st.tuples(st.sampled_from([A, A_AGAIN, B]), st.booleans())))
def test_repetitions_across_forms_are_merged(calls: list[tuple[tuple[str, str], bool]]) -> None:
    """If a call occurs both as text and as a structured call, in any order, it is kept as often as it occurs in the
    more frequent form.
    """
    seen = SeenCalls(drops_all=False)
    left = [call for call, structured in calls if not seen.take(*call, structured=structured)]
    for same in ((A, A_AGAIN), (B,)):
        made = [sum(call in same for call, structured in calls if structured is kind) for kind in (False, True)]
        assert sum(call in same for call in left) == max(made)


def test_repetitions_in_one_form_are_kept() -> None:
    """Calls in the same form (text or structured) are all kept, even if one repeats another, unless the operator drops
    repetitions.
    """
    assert not any(SeenCalls(drops_all=False).take(*A, structured=kind) for kind in (False, True))
    strict = SeenCalls(drops_all=True)
    assert [strict.take(*call, structured=False) for call in (A, A_AGAIN, B)] == [False, True, False]


@pytest.mark.parametrize("client", ["responses", "chat"])
@pytest.mark.parametrize("text_first", [True, False])
def test_call_in_both_forms_runs_once(client: ApiName, text_first: bool) -> None:
    """The client receives a call only once if the backend sends it both as text and as a structured call. The report
    contains a warning.
    """
    report = Report()
    answer = Answer(plan(client, "chat", True, [tool("f")]), report)
    text = TextDelta('<tool_call>{"name":"f","arguments":{}}</tool_call>')
    structured = StructuredCall("f", "{ }")
    events = [text, structured] if text_first else [structured, text]
    emitted = [sent for event in (*events, Finished("stop"), Closed()) for sent in answer.feed(event)]
    assert sum(isinstance(event, CallStarted) for event in emitted) == 1
    assert report.warnings == ["DUPLICATE_CALL:f"]


def test_non_json_inputs_are_compared_as_text() -> None:
    """Inputs that are not JSON are compared as text. Whitespace around them is ignored."""
    seen = SeenCalls(drops_all=False)
    texts = (("sh", "ls -l\n"), False), (("sh", "ls -a"), True), (("sh", "ls -l"), True)
    assert [seen.take(*call, structured=kind) for call, kind in texts] == [False, False, True]


def test_text_call_can_be_repeated_until_matched() -> None:
    """``may_be_repeated`` is true as long as there are calls in text that no structured call has repeated."""
    seen = SeenCalls(drops_all=False)
    assert not seen.may_be_repeated
    for arguments in ("{}", '{"a":1}'):
        seen.take("f", arguments, structured=False)
    assert seen.may_be_repeated
    assert seen.take("f", "{}", structured=True)
    assert seen.may_be_repeated
    assert seen.take("f", '{"a": 1}', structured=True)
    assert not seen.may_be_repeated
