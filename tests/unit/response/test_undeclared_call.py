"""Tests for answers that consist only of a call to a tool that does not exist. For example, a model might call
``greet`` to greet the user. Such an answer is withheld.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.answers import plan, read, tool
from support.each import each
from support.wire import ApiName, backend_answer
from toolsim.core.events import (
    ClientEvent,
    Ended,
    EndReason,
    Failed,
    KeepAlive,
    Opened,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from toolsim.core.plan import Plan
from toolsim.core.report import Report
from toolsim.response.call_keys import ARGUMENTS_KEYS, NAME_KEYS
from toolsim.response.faults import _ANY_MARK, SoleCall, UndeclaredCall
from toolsim.response.retry import SECOND_OPINION, Retry
from toolsim.response.rewrite import ResponseRewriter

GREETING = '{"name": "greet", "arguments": {"message": "Hello!"}}'
PLAN = replace(plan("chat", "chat", True, [tool("add", a="number")]), may_invent=True)
STOP: dict[int, EndReason] = {0: "stop"}

INVENTED = [
    GREETING,
    f"\n {GREETING}\n",
    f"[{GREETING}]",
    f"[{GREETING}, {GREETING}]",
    f"{GREETING}\n{GREETING}",
    f"```json\n{GREETING}\n```",
    f"```\n[\n  {GREETING}\n]\n```\n",
    f"```typescript\n{GREETING}\n```",
    f"<greeting>{GREETING}",
    GREETING.replace("arguments", "parameters"),
    GREETING.replace(" ", ""),
    GREETING.replace("Hello!", r"He said \"}\" ... and left"),
    # A call without its last bracket, which small models often forget.
    GREETING[:-1],
]
TEXT = [
    "",
    " ",
    "Hello!",
    f"Hello! {GREETING}",
    f"{GREETING} is how to greet.",
    f"{GREETING}\nThat is how to greet.",
    f"```json\n{GREETING}\n```\nSo.",
    f"`{GREETING}`",
    '{"name": "Ada", "age": 36}',
    '{"name": "Ada"}',
    '{"name": "", "arguments": {}}',
    '{"name": "greet", "description": "Greets.", "parameters": {}}',
    '{"name": "greet", "arguments": {...}}',
    '{"name": "greet", "arguments": …}',
    # A call to a declared tool does not count as invented, even if it is invalid.
    '{"name": "add", "arguments": {"a": "one"}}',
    '```typescript\n{"name": "add", "arguments": {"a": 1}}\n```',
    GREETING[:-4],
    GREETING[:10],
    "{",
    "[1, 2]",
    "```python\nprint(1)\n```",
    "<b>Hello</b>",
    f"<tool_call>{GREETING}</tool_call>",
]


def told(the_plan: Plan, pieces: Sequence[str], *, finish: str = "stop") -> tuple[list[ClientEvent], Retry | None]:
    """Return the events of a streamed answer, and the retry that it waits for, if any."""
    emitted: list[ClientEvent] = []
    kind, data = backend_answer("chat", True, pieces, finish)
    rewriter = ResponseRewriter(
        the_plan, Report(), content_type=kind, listener=lambda events, _: emitted.extend(events)
    )
    for _ in rewriter.steps(data):
        pass
    retry = rewriter.waits
    assert rewriter.is_done is (retry is None)
    return [event for event in emitted if not isinstance(event, Opened)], retry


def cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("text", INVENTED)
def test_invented_call_is_withheld(text: str, size: int) -> None:
    """A call to a tool that does not exist is withheld, wherever the text is split. The retry contains the name of this
    tool and the original text.
    """
    emitted, retry = told(PLAN, cut(text, size))
    assert emitted == []
    assert retry is not None
    assert (retry.fault.reason, retry.fault.name, retry.words.strip()) == (SECOND_OPINION, "greet", text.strip())
    *texts, end = retry.otherwise
    assert "".join(each.text for each in texts if isinstance(each, TextDelta)) == retry.words
    assert end == Ended(STOP)
    assert retry.usage is not None
    assert told(replace(PLAN, may_invent=False), cut(text, size)) == ([*texts, Ended(STOP, retry.usage)], None)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("text", TEXT)
def test_other_answers_are_unchanged(text: str, size: int) -> None:
    """If an answer is not a call to an undeclared tool, it yields the same events as without the check for such
    calls.
    """
    assert told(PLAN, cut(text, size)) == told(replace(PLAN, may_invent=False), cut(text, size))
    assert told(PLAN, cut(text, size))[1] is None


@pytest.mark.parametrize("text", INVENTED)
def test_truncated_invented_call_is_text(text: str) -> None:
    """If a call to an undeclared tool was cut off, it is text, because it is unknown how the call would have
    continued.
    """
    assert told(PLAN, [text], finish="length") == told(replace(PLAN, may_invent=False), [text], finish="length")


PARTS = [
    *(
        GREETING,
        '{"name": "',
        "add",
        "greet",
        '"',
        ', "arguments": ',
        "{",
        "}",
        "[",
        "]",
        "```",
        "json",
        "\n",
        " ",
        "Hm.",
    ),
    *('{"a": 1}', "<tool_call>", "</tool_call>", '"', "\\", ",", "...", "parameters", "<", ">", "`"),
    '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
]


@given(st.lists(st.sampled_from(PARTS), max_size=7), st.integers(1, 9))
def test_splits_make_no_difference(parts: list[str], size: int) -> None:
    """Whether text counts as an invented call does not depend on where it is split. Other answers remain unchanged."""
    text = "".join(parts)
    emitted, retry = told(PLAN, cut(text, size))
    assert (retry is not None) == (told(PLAN, [text])[1] is not None)
    if retry is None:
        assert emitted == told(replace(PLAN, may_invent=False), cut(text, size))[0]
    else:
        assert emitted == []


# The health checks are disabled because earlier versions of Hypothesis discard most examples for this pattern.
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.from_regex(re.compile(SoleCall(_ANY_MARK, bool).pattern, re.ASCII), fullmatch=True))
def test_every_beginning_of_a_call_is_withheld(head: str) -> None:
    """Text of any length is withheld while it could be the beginning of a call to an undeclared tool."""
    for size in range(1, len(head) + 1):
        assert SoleCall(_ANY_MARK, bool).read(head[:size])


@pytest.mark.parametrize("arguments", ARGUMENTS_KEYS)
@pytest.mark.parametrize("name", NAME_KEYS)
def test_every_key_spelling_is_recognized(name: str, arguments: str) -> None:
    """A call to an undeclared tool is recognized with any accepted spelling of its keys."""
    _, retry = told(PLAN, cut(f'{{"{name}": "greet", "{arguments}": {{}}}}', 3))
    assert retry is not None


@pytest.mark.parametrize(
    ("passes", "rest"),
    [
        ("H", "ello"),
        ('{"nu', 'mber": 1}'),
        ('{"name": "add"', ", "),
        ('{"name": "Ada", "ag', 'e": 36}'),
        ('{"name": "Ada"}', ""),
        ("[1", ", 2]"),
        ("```python\np", "rint"),
        ("<b>H", "i"),
        (f"{GREETING} i", "s"),
        ('{"name": "greet", "arguments": {..', ".}}"),
    ],
)
def test_text_is_released_as_early_as_possible(passes: str, rest: str) -> None:
    """Withheld text is emitted at the first character that shows that it is not a call to an undeclared tool."""
    stage = UndeclaredCall(lambda name: name == "add")
    for character in passes[:-1]:
        assert stage.take([TextDelta(character)]) == []
        assert stage.is_holding
    assert "".join(each.text for each in stage.take([TextDelta(passes[-1])]) if isinstance(each, TextDelta)) == passes
    assert stage.is_over
    assert stage.take([TextDelta(rest)]) == [TextDelta(rest)]


ANSWER: list[Any] = [TextDelta(GREETING), Ended({0: "stop"}, Usage(1, 2, 3))]


@each(
    ("events", "passed", "is_asked"),
    [
        (ANSWER, [], True),
        (
            [Opened(), ReasoningDelta("Hm."), TextDelta(" "), *ANSWER],
            [Opened(), ReasoningDelta("Hm."), TextDelta(" ")],
            True,
        ),
        ([ANSWER[0], KeepAlive(), ANSWER[1]], [KeepAlive()], True),
        ([ANSWER[0], ReasoningDelta("Hm."), ANSWER[1]], None, False),
        ([ANSWER[0], Failed(None)], None, False),  # type: ignore[arg-type]
        ([TextDelta(GREETING, 1), ANSWER[1]], None, False),
        ([ANSWER[0], Ended({0: "length"})], None, False),
        ([ANSWER[0], Ended({0: "stop", 1: "stop"})], None, False),
        ([TextDelta(GREETING + " " * 70_000), ANSWER[1]], None, False),
    ],
)
def test_other_items_release_the_text(events: list[Any], passed: list[Any] | None, is_asked: bool) -> None:
    """If another item arrives, the text that was withheld before it is emitted first, so that the order is kept. A
    keep-alive does not release the text.
    """
    stage = UndeclaredCall(lambda _: False)
    assert stage.take(events) == (events if passed is None else passed)
    assert (stage.retry is not None) is is_asked
    assert stage.is_over


@each("api", ["chat", "responses", "messages"])
@each("stream", [True, False])
@each("words", [True, False])
def test_answer_continues_with_the_further_round(api: ApiName, stream: bool, words: bool) -> None:
    """If the model is called again (in a further round), the answer consists of the text of that round. Otherwise, it
    consists of the original text.
    """
    the_plan = replace(plan(api, "chat", stream, [tool("add", a="number")]), may_invent=True)
    kind, data = backend_answer("chat", stream, [GREETING])
    report = Report()
    rewriter = ResponseRewriter(the_plan, report, content_type=kind)
    chunks = [chunk for part in (data, b"") for step in rewriter.steps(part) for chunk in step]
    alive = rewriter.keepalive()
    assert bool(alive) is stream
    chunks += alive
    if words:
        chunks += rewriter.proceed([TextDelta("Hello")])
        assert not rewriter.is_done
        chunks += rewriter.proceed([TextDelta("!"), Ended(STOP)])
    else:
        chunks += rewriter.conclude()
    assert rewriter.is_done
    assert rewriter.fail(None) == rewriter.keepalive() == []  # type: ignore[arg-type]
    seen = read(api, stream, chunks)
    assert seen.items == [["text", "Hello!" if words else GREETING]]
    assert report.finish == "stop"


def test_long_answer_is_searched_once() -> None:
    """A long answer is not searched again for each delta. The search ends if the text before the arguments is too
    long.
    """
    stage = UndeclaredCall(lambda _: False)
    for character in '{"name": "' + string.ascii_letters * 20:
        stage.take([TextDelta(character)])
    assert stage.is_over
