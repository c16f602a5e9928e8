"""Tests for sending a single prompt, with transforms that change the request and the answer."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from toolsim.eval.runtime.prompt import PromptRunner, calls_from_content_tags, fingerprint
from toolsim.eval.runtime.turn import Answer, Call, Request, Tool

REQUEST = Request(({"role": "user", "content": "Hello"},), (Tool("a", "", {"type": "object"}),))


async def test_transforms_run_in_order_in_both_directions() -> None:
    """Each transform receives the result of the previous one. The returned request is the request that was sent."""
    sent: list[Request] = []

    async def send(request: Request) -> Answer:
        sent.append(request)
        return Answer("x")

    asked = await PromptRunner(
        send,
        request_transforms=[
            lambda request: replace(request, tool_choice="required"),
            lambda request: replace(request, options={"seen": request.tool_choice}),
        ],
        answer_transforms=[
            lambda answer: replace(answer, text=f"{answer.text}1"),
            lambda answer: replace(answer, text=f"{answer.text}2"),
        ],
    ).run(REQUEST)
    assert asked.answer.text == "x12"
    assert sent == [asked.request]
    assert asked.request.options == {"seen": "required"}
    assert asked.fingerprint == fingerprint(sent[0])


def test_fingerprint_covers_the_prompt() -> None:
    """Equal prompts have equal fingerprints. Every change to a prompt changes its fingerprint, except a different order
    of JSON keys.
    """
    same = Request(({"content": "Hello", "role": "user"},), REQUEST.tools)
    assert fingerprint(same) == fingerprint(REQUEST)
    changed = [
        replace(REQUEST, messages=({"role": "user", "content": "Hello!"},)),
        replace(REQUEST, tools=()),
        replace(REQUEST, tool_choice="required"),
        replace(REQUEST, parallel=False),
        replace(REQUEST, options={"temperature": 0}),
    ]
    assert len({fingerprint(request) for request in [REQUEST, *changed]}) == 6


def test_tagged_calls_in_the_text_are_found() -> None:
    """Tagged calls in the text become calls, whether their arguments are an object or a string. The prose around them
    is kept.
    """
    text = (
        'First <tool_call>{"name": "a", "arguments": {"x": 1}}</tool_call>\n'
        '<tool_call>\n{"name": "b", "arguments": "{}"}\n</tool_call>'
    )
    answer = calls_from_content_tags(Answer(text))
    assert answer.text == "First"
    assert answer.calls == (Call("tag_1", "a", '{"x": 1}'), Call("tag_2", "b", "{}"))
    assert answer.finish == "tool_calls"


@given(st.text(alphabet='<tool_cal>/{}":name,args \n[]1'))
def test_parsing_tags_never_raises(text: str) -> None:
    """Any text between call tags either becomes a call or remains text. Parsing it never raises an exception."""
    answer = calls_from_content_tags(Answer(f"<tool_call>{text}</tool_call>"))
    assert answer.calls or answer.text == f"<tool_call>{text}</tool_call>"


def test_answers_with_real_calls_are_unchanged() -> None:
    """If an answer already contains structured calls, its text is not searched for tagged calls."""
    answer = Answer('<tool_call>{"name": "b"}</tool_call>', (Call("1", "a", "{}"),))
    assert calls_from_content_tags(answer) == answer
