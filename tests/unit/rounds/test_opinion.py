"""Tests for second opinions on calls: which calls the client receives, and how text replaces refused calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import rounds
from support.answers import read
from support.each import each
from support.rounds import Script, body_of, job_of, run
from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    KeepAlive,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from toolsim.core.plan import Tool
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.rounds import opinion
from toolsim.rounds.opinion import (
    NO_OPINION,
    SecondOpinion,
    question_about,
    question_about_call,
    user_request,
    verdict_of,
)
from toolsim.rounds.round_planner import Round, RoundLimits, wants_opinion
from toolsim.rounds.runner import ROUND_FAILED
from toolsim.wire.apis import CHAT

ECHO_CALL = '<tool_call>{"name":"echo","arguments":{"x":1}}</tool_call>'
ADD_CALL = '<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'
BAD = ADD_CALL.replace("1", '"one"')
ECHO = ["call", "echo", '{"x":1}']
ADD = ["call", "add", '{"a":1}']
ON = Policy(second_opinion="on")
API_NAMES: tuple[ApiName, ...] = ("chat", "responses")
OUTPUTS: list[Any] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]},
    {"role": "tool", "tool_call_id": "c", "content": "18"},
]
play = partial(rounds.play, policy=ON)


REFUSED_ECHO = ["SECOND_OPINION:echo"]


@each("stream", [True, False])
@each("backend", API_NAMES)
@each("client", API_NAMES)
@each(
    ("texts", "items", "dropped", "warnings"),
    [
        (["Well.\n" + ECHO_CALL, "Yes."], [["text", "Well.\n"], ECHO], [], []),
        ([ECHO_CALL, "No.", "No.", "So be it."], [["text", "So be it."]], REFUSED_ECHO, []),
        (["Well. " + ECHO_CALL, "no", "no", "So be it."], [["text", "Well. \n\nSo be it."]], REFUSED_ECHO, []),
        ([ECHO_CALL, "Perhaps."], [ECHO], [], [f"{NO_OPINION}:echo"]),
        ([ECHO_CALL, "No.", "Yes."], [ECHO], [], []),
        ([ECHO_CALL, "No.", "Perhaps."], [ECHO], [], [f"{NO_OPINION}:echo"]),
        ([ECHO_CALL, "No.", None], [ECHO], [], [f"{NO_OPINION}:echo"]),
        ([ECHO_CALL, None], [ECHO], [], [f"{NO_OPINION}:echo"]),
        ([ECHO_CALL, "no", "no", None], [ECHO], [], [ROUND_FAILED]),
        ([ECHO_CALL + ADD_CALL, "no", "no", "yes"], [ADD], REFUSED_ECHO, []),
        ([ADD_CALL + ECHO_CALL, "yes", "no", "no"], [ADD], REFUSED_ECHO, []),
        ([ECHO_CALL + ADD_CALL + ECHO_CALL.replace("1", "2"), "no", "no", "yes"], [ADD], REFUSED_ECHO * 2, []),
        (
            [ECHO_CALL + ADD_CALL, "no", "no", "no", "no", "So be it."],
            [["text", "So be it."]],
            [*REFUSED_ECHO, "SECOND_OPINION:add"],
            [],
        ),
        (["Well."], [["text", "Well."]], [], []),
    ],
)
def test_two_refusals_drop_a_call(
    texts: list[str | None],
    items: list[Any],
    dropped: list[str],
    warnings: list[str],
    client: ApiName,
    backend: ApiName,
    stream: bool,
) -> None:
    """A call is dropped only after two negative opinions. If no other call remains, the model is asked for text
    instead.
    """
    seen, script, job = play(*texts, client=client, backend=backend, stream=stream)
    report = job.report
    assert seen.items == items
    assert len(script.asked) == len(texts) == report.rounds
    assert seen.usage == 7 * sum(text is not None for text in texts)
    calls = [item[1] for item in items if item[0] == "call"]
    assert report.calls == calls
    assert (
        report.tool_call_ids
        == seen.ids
        == [f"{'call' if client == 'chat' else 'fc'}_00{n + 1}" for n in range(len(calls))]
    )
    assert (report.dropped_calls, report.warnings) == (dropped, warnings)
    assert report.finish == ("tool_calls" if calls else "stop")
    assert not report.truncated


GREETING = '{"name": "greet", "arguments": {"message": "Hello!"}}'
INVENTED = ["SECOND_OPINION:greet"]


@each("stream", [True, False])
@each("policy", [ON, replace(ON, second_opinion="undeclared")])
@each("client", API_NAMES)
@each(
    ("texts", "items", "dropped"),
    [
        ([GREETING, "Hello!"], [["text", "Hello!"]], INVENTED),
        ([f"```json\n[\n  {GREETING}\n]\n```", "Hello!"], [["text", "Hello!"]], INVENTED),
        ([f"[{GREETING}]", "Hello!"], [["text", "Hello!"]], INVENTED),
        # The model is asked for text only once. If that round fails, the original answer is kept.
        ([GREETING, GREETING], [["text", GREETING]], INVENTED),
        ([GREETING, None], [["text", GREETING]], []),
        # Text around an invented call is not removed, and neither is JSON that is not a call. In both cases, the answer
        # is unchanged.
        ([f"{GREETING} is how to greet."], [["text", f"{GREETING} is how to greet."]], []),
        ([f"Hello! {GREETING}"], [["text", f"Hello! {GREETING}"]], []),
        (['{"name": "Ada", "age": 36}'], [["text", '{"name": "Ada", "age": 36}']], []),
    ],
)
def test_invented_call_is_replaced_by_text(
    texts: list[str | None], items: list[Any], dropped: list[str], client: ApiName, policy: Policy, stream: bool
) -> None:
    """With ``second_opinion`` set to ``on`` or ``undeclared``, a call to an undeclared tool is replaced with text. No
    opinion is requested on the call.
    """
    seen, script, job = rounds.play(*texts, client=client, backend=client, stream=stream, policy=policy)
    assert seen.items == items
    assert len(script.asked) == len(texts)
    assert job.report.dropped_calls == dropped


def test_undeclared_value_accepts_declared_calls() -> None:
    """With ``second_opinion=undeclared``, no opinion is requested on calls to declared tools, or on JSON that the
    client requested.
    """
    policy = replace(ON, second_opinion="undeclared")
    seen, script, _ = rounds.play(ECHO_CALL, policy=policy)
    assert (seen.items, len(script.asked)) == ([ECHO], 1)
    demanded = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    seen, script, _ = rounds.play(GREETING, policy=policy, client="chat", response_format=demanded)
    assert (seen.items, len(script.asked)) == ([["text", GREETING]], 1)


def test_question_contains_only_the_tool_and_the_request() -> None:
    """The prompt for a second opinion contains only the tool and the user's request. After two negative opinions, a
    round without tools requests text.
    """
    words = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is love?"}]
    _, script, job = play(ECHO_CALL, "No", "No", "A word.", client="chat", messages=words)
    first, question, second, last = script.asked
    assert "CLIENT TOOL CATALOG" in str(first)
    assert [each["role"] for each in question] == ["system", "user"]
    assert "echo()" in question[1]["content"]
    assert "What is love?" in question[1]["content"]
    assert "Be brief." not in str(question)
    assert "A call: echo(x=1)\n" in second[1]["content"]
    assert [each["role"] for each in second] == ["system", "user"]
    assert last == words
    assert job.report.retries == REFUSED_ECHO


def test_required_calls_need_no_second_opinion() -> None:
    """No second opinion is requested if ``second_opinion`` is off, if the request requires or forbids a call, or if its
    last message is a tool output.
    """

    def wants(policy: Policy = ON, **more: Any) -> bool:
        return wants_opinion(CHAT.read(body_of("chat", False, **more)), policy)

    assert wants()
    assert wants(tool_choice="auto")
    assert not wants(tool_choice="required")
    assert not wants(tool_choice={"type": "function", "function": {"name": "echo"}})
    assert not wants(tool_choice="none")
    assert not wants(messages=OUTPUTS)
    assert wants(messages=[*OUTPUTS, {"role": "user", "content": "and now?"}])
    assert not wants(replace(ON, tool_use_mode="enforced"))
    assert not wants(Policy())
    seen, script, _ = play(ECHO_CALL, tool_choice="required")
    assert (seen.items, len(script.asked)) == ([ECHO], 1)


@pytest.mark.parametrize(("rounds", "asked"), [(1, 1), (2, 1), (3, 2), (4, 4), (5, 4)])
def test_question_needs_a_remaining_round(rounds: int, asked: int) -> None:
    """Each second opinion counts as a round. If no further round would be left after it, the call is sent without an
    opinion.
    """
    seen, script, job = play(ECHO_CALL, "no", "no", "Words.", bounds=RoundLimits(rounds=rounds))
    assert len(script.asked) == asked
    assert seen.items == ([ECHO] if asked < 4 else [["text", "Words."]])
    assert job.report.rounds == asked
    seen, script, _ = play(ECHO_CALL, "no", "no", "Words.", bounds=RoundLimits(seconds=1e-9))
    assert (seen.items, len(script.asked)) == ([ECHO], 1)


def test_second_opinions_do_not_use_up_retries() -> None:
    """Second opinions do not count as retries. If a retry follows, its prompt takes the verdicts into account."""
    both = replace(ON, retry=1)
    seen, script, job = play(ECHO_CALL + BAD, "no", "no", ECHO_CALL + ADD_CALL, "yes", policy=both)
    assert seen.items == [ADD]
    assert "So be it" not in str(script.asked)
    assert job.report.dropped_calls == REFUSED_ECHO * 2
    seen, script, job = play(ECHO_CALL + BAD, "yes", ADD_CALL, "no", "no", policy=both)
    assert seen.items == [ECHO]
    assert "The calls before it were made" in str(script.asked[2][-1])
    seen, _, _ = play(ECHO_CALL + BAD, "no", "no", "Well.", policy=both)
    assert seen.items == [["text", "Well."]]


@pytest.mark.parametrize("client", API_NAMES)
def test_refused_calls_are_not_the_finish_reason(client: ApiName) -> None:
    """If all calls are refused, the finish reason is not "tool_calls", even if the round that follows fails."""
    both = replace(ON, retry=1, strict_policy="message")
    seen, _, job = play(ECHO_CALL + BAD, "no", "no", None, client=client, policy=both)
    assert [kind for kind, _ in seen.items] == ["text"]
    assert (seen.finish, job.report.finish) == ("stop" if client == "chat" else "completed", "stop")
    cut = ADD_CALL[:40]
    seen, _, job = play(f"{ECHO_CALL}{cut}|length", "no", "no", None, client=client, policy=both)
    # A chat completions client does not receive text after a call.
    assert seen.items == ([] if client == "chat" else [["text", cut]])
    assert (seen.finish, job.report.finish) == ("length" if client == "chat" else "incomplete", "length")
    seen, _, job = play(f"{ECHO_CALL}{cut}|length", "yes", None, client=client, policy=both)
    assert (seen.items[0], job.report.finish) == (ECHO, "tool_calls")


def test_xml_text_of_a_refused_call_is_dropped() -> None:
    policy = replace(ON, output_mode="obsidian-xml")
    seen, _, _ = play(ECHO_CALL + ADD_CALL, "no", "no", "yes", client="chat", policy=policy)
    (_, text), *calls = seen.items
    assert calls == [ADD]
    assert "<name>add</name>" in text
    assert "echo" not in text
    seen, _, _ = play(ECHO_CALL, "no", "no", "Words.", client="chat", policy=policy)
    assert seen.items == [["text", "Words."]]


def test_text_after_a_refused_call_is_dropped() -> None:
    """Text after a refused call is dropped, because it assumes that the call was made. Text after an accepted call is
    kept.
    """
    seen, _, _ = play(ECHO_CALL + "\nIt says 1.", "no", "no", "Words.")
    assert seen.items == [["text", "Words."]]
    seen, _, _ = play(ECHO_CALL + ADD_CALL + "\nIt says 1.", "no", "no", "yes")
    assert seen.items == [ADD, ["text", "\nIt says 1."]]


def test_undeclared_call_needs_no_second_opinion() -> None:
    seen, script, _ = play(ECHO_CALL.replace("echo", "other"), policy=replace(ON, unknown_tool="call"))
    assert seen.items == [["call", "other", '{"x":1}']]
    assert len(script.asked) == 1


@each(
    ("text", "verdict"),
    [
        ("yes", True),
        (" Yes, it is.", True),
        ("No.", False),
        ("**no**", False),
        ('"No"', False),
        ("<think>\nNo, wait.\n</think>\n\nYes", True),
        ("<think>\nNo", None),
        ("", None),
        ("Not sure", None),
        ("Nobody knows", None),
        ("I think so: yes", None),
        ("Yesterday", None),
    ],
)
def test_verdict_is_the_first_word(text: str, verdict: bool | None) -> None:
    """The verdict of a second opinion is the first word of the model's answer. Markup and reasoning are ignored."""
    assert verdict_of(text) is verdict


@given(st.text())
def test_any_answer_is_read_without_an_exception(text: str) -> None:
    """``verdict_of`` does not raise an exception for any text. It returns None for blank text."""
    assert verdict_of(text) is None or text.lower().strip()


def test_content_of_the_question() -> None:
    """The prompt for a second opinion contains the tool with its parameter names, and the user's latest messages. Long
    messages are shortened.
    """
    messages = [{"role": role, "content": text} for text in ("one", "two", "three") for role in ("user", "assistant")]
    long = "a" * 3_000 + "b" * 3_000
    request = CHAT.read({"model": "m", "messages": [*messages, {"role": "user", "content": long}]})
    assert user_request(request) == f"two\nthree\n{'a' * 2_000} … {'b' * 2_000}"
    tool = Tool("f", "f", description=" It does f. ", parameters={"type": "object", "properties": {"x": {}, "y": {}}})
    assert "f(x, y): It does f.\n" in question_about(tool, "hi {there}")
    assert "hi {there}" in question_about(tool, "hi {there}")
    assert "g(): \n" in question_about(Tool("g", "g", parameters={"properties": None}), "hi")
    asked = question_about_call(tool, '{"x": "a \\"b\\"", "y": [1]}', "hi {there}")
    assert 'A request: hi {there}\n\nA call: f(x="a \\"b\\"", y=[1])\n' in asked
    assert f'A call: f(x="{"a" * 1_997} … ' in question_about_call(tool, f'{{"x": "{"a" * 9_000}"}}', "hi")
    free = Tool("g", "g", kind="custom", parameters={})
    assert 'A call: g("one\\ntwo")\n' in question_about_call(free, "one\ntwo", "hi")


CALL: list[ClientEvent] = [CallStarted(1, "echo"), CallDelta("{}"), CallEnded()]


async def weighed(ask: Any, *, patience: float = 60.0, report: Report | None = None, poses: bool = True) -> Any:
    """Request a second opinion on a call to ``echo`` by calling ``ask``, and return the outcome."""
    opinion = SecondOpinion(CHAT.read(body_of("chat", False)), ON, ask, report or Report(), patience=patience)
    assert opinion.take([TextDelta("Well."), *CALL[:1]]) == [TextDelta("Well.")]
    assert opinion.take([KeepAlive(), *CALL[1:]]) == [KeepAlive()]
    assert opinion.has_withheld
    come = await opinion.evaluate(lambda *_: Round(2, {}, ON) if poses else None)
    assert not opinion.has_withheld
    return come


async def test_slow_question_is_abandoned() -> None:
    """If a second opinion takes too long, its round is closed, which stops the model, and the call is sent without an
    opinion.
    """
    closed: list[bool] = []

    async def ask(_: Round) -> AsyncGenerator[object]:
        try:
            yield TextDelta("no")
            await asyncio.sleep(60)
            yield Ended()
        finally:
            closed.append(True)

    report = Report()
    come = await weighed(ask, patience=0.01, report=report)
    assert (list(come.passed), come.refused, closed) == (CALL, [], [True])
    assert report.warnings == [f"{NO_OPINION}:echo"]


async def test_truncated_opinion_is_ignored() -> None:
    """If the round for a second opinion breaks off, the opinion is ignored, because its text might have continued
    differently.
    """

    async def ask(_: Round) -> AsyncGenerator[object]:
        yield TextDelta("no")

    assert list((await weighed(ask)).passed) == CALL

    async def refuse(_: Round) -> AsyncGenerator[object]:
        yield TextDelta("no")
        yield Ended(usage=Usage(total_tokens=3))

    come = await weighed(refuse)
    assert (list(come.passed), come.refused, come.usage) == ([], ["echo"], Usage(total_tokens=6))
    assert list((await weighed(refuse, poses=False)).passed) == CALL


async def test_output_after_a_refused_call_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that follows a refused call is processed in linear time. The call is converted to text at most once."""
    thoughts = [ReasoningDelta("hm") for _ in range(5_000)]
    texts = [TextDelta(f" {number}") for number in range(5_000)]
    written = list[str]()
    monkeypatch.setattr(opinion, "use_tool_text", lambda _, arguments: written.append(arguments) or "?")
    for kind in (ReasoningDelta, TextDelta):
        monkeypatch.setattr(kind, "__eq__", lambda *_: pytest.fail("compared"))

    async def refuse(_: Round) -> AsyncGenerator[object]:
        yield TextDelta("no")
        yield Ended()

    asks = SecondOpinion(CHAT.read(body_of("chat", False)), ON, refuse, Report())
    asks.take([*CALL, *thoughts, *texts])
    come = await asks.evaluate(lambda *_: Round(2, {}, ON))
    told, again = come.in_words(Ended({0: "tool_calls"}))
    assert written == ["{}"]
    assert list(map(id, told)) == list(map(id, thoughts))
    assert list(map(id, again.otherwise[:-1])) == list(map(id, [*CALL, *texts]))


async def test_failed_round_releases_withheld_calls() -> None:
    """If a round fails, its withheld calls are released unchanged, and no second opinion is requested."""
    opinion = SecondOpinion(CHAT.read(body_of("chat", False)), ON, lambda _: pytest.fail("asked"), Report())
    opinion.take(CALL)
    assert list(opinion.release().passed) == CALL


@given(st.lists(st.sampled_from(["Well. ", ECHO_CALL, ADD_CALL, "\n"]), max_size=4), st.integers(1, 9))
def test_streamed_and_non_streamed_answers_are_equal(parts: list[str], size: int) -> None:
    """A streamed answer has the same content as the non-streamed answer, regardless of how the model's text is
    split.
    """
    both = []
    for stream in (True, False):
        for refused in ("echo", "add"):

            class Knows(Script):
                async def ask(self, api_name: ApiName, stream: bool, round_: Round) -> AsyncGenerator[Any]:
                    asked = str(round_.body)
                    if "A function: " in asked:
                        self.texts = [*self.texts, "no" if f"A function: {refused}" in asked else "yes"]  # noqa: B023
                    elif round_.number > 1:
                        self.texts = [*self.texts, "Words."]
                    async for event in super().ask(api_name, stream, round_):
                        yield event

            script = Knows(["".join(parts)], "responses", size)
            job = job_of(script, "responses", stream, ON, RoundLimits())
            seen = read("responses", stream, asyncio.run(run(job))[1])
            both.append((stream, seen.items, seen.ids, seen.finish, job.report.dropped_calls))
    assert [each[1:] for each in both if each[0]] == [each[1:] for each in both if not each[0]]
