from __future__ import annotations

import re
from itertools import count

import pytest
from support.each import each
from support.turns import CALL, chat, responses
from toolsim.core.events import ReasoningDelta, TextDelta
from toolsim.core.plan import Plan
from toolsim.core.report import Report
from toolsim.response import output_sequencer
from toolsim.response.choice import Choice
from toolsim.response.judge import Judge
from toolsim.response.output_sequencer import Gap


def new_choice(the_plan: Plan) -> Choice:
    return Choice(the_plan, report := Report(), Judge(the_plan, report), count(1))


DIAGRAM = [line for line in str(output_sequencer.__doc__).splitlines() if line.strip().startswith("|")]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


EVENTS = {"text": TextDelta("words"), "call": TextDelta(CALL), "other item": ReasoningDelta("hm"), "end": None}


def state_of(the_choice: Choice) -> str:
    return re.findall(r"state_(\w+)", repr(the_choice))[0]


def act(the_choice: Choice, name: str) -> None:
    match EVENTS[name]:
        case TextDelta(text):
            the_choice.text(text)
        case ReasoningDelta() as event:
            the_choice.other(event)
        case _:
            the_choice.finish("stop")


@each("state", ["before_text", "text", "call", "ended"])
@each("event", EVENTS)
def test_diagram_matches_the_code(state: str, event: str) -> None:
    """The table of states in the module's docstring is complete: each cell lists exactly the states that a choice can
    reach.
    """
    head, rows = cells(DIAGRAM[0]), {cells(line)[0]: cells(line) for line in DIAGRAM[2:]}
    seen = set()
    for history in (["text"], ["call"], ["call", "text"], ["end"], []):
        for policy in ({}, {"stop_after_tools": "on"}, {"suppress_tail_after_tools": True}):
            the_choice = new_choice(responses(policy=policy))
            for step in history:
                act(the_choice, step)
            if state_of(the_choice) == state:
                act(the_choice, event)
                seen.add(state_of(the_choice))
    assert seen == set(re.findall(r"\w+", rows[state][head.index(event)])) - {"or"}


def test_whitespace_is_held_back() -> None:
    """Whitespace is held back and emitted once, in the original order. Other text is not held back."""
    gap = Gap()
    assert not gap
    assert gap.hold(" \n")
    assert gap.hold("\t")
    assert not gap.hold("x")
    assert gap
    assert gap.take() == " \n\t"
    assert not gap
    assert gap.take() == ""


def test_endless_whitespace_is_not_held_back() -> None:
    """Whitespace that exceeds the size limit is not held back."""
    gap = Gap()
    assert gap.hold(" " * 65_536)
    assert not gap.hold(" ")
    assert len(gap.take()) == 65_536
    assert gap.hold(" ")


def test_fence_mark_is_held_back_with_the_whitespace() -> None:
    """If a tagged block is in a code fence, the opening line of the fence is held back together with the whitespace."""
    gap = Gap()
    gap.hold_mark("```xml\n")
    assert gap.hold("\n")
    assert gap.take() == "```xml\n\n"


def said(client: str, *steps: str, **policy: str) -> str:
    """Return the text that the client receives for the given steps. The step "|" ends a message, and "?" stands for
    reasoning.
    """
    choice = new_choice((chat if client == "chat" else responses)(policy=policy))
    events = []
    for step in steps:
        match step:
            case "|":
                events += choice.next_message()
            case "?":
                events += choice.other(ReasoningDelta("hm"))
            case _:
                events += choice.text(step)
    events += choice.finish("stop")
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize(
    ("steps", "as_chat", "as_list"),
    [
        (("Hi", "|", "you"), "Hi\n\nyou", "Hi\n\nyou"),
        (("Hi", "|", "|", "you"), "Hi\n\n\n\nyou", "Hi\n\n\n\nyou"),
        (("Hi", "|"), "Hi\n\n", "Hi\n\n"),
        (("|", "you"), "you", "you"),
        (("Hi", "?", "|", "you"), "Hi\n\nyou", "Hiyou"),
        (("a <tool_", "|", "call>"), "a <tool_\n\ncall>", "a <tool_\n\ncall>"),
        ((CALL[:30], "|", CALL[30:]), "", ""),
    ],
)
def test_empty_line_separates_two_messages(steps: tuple[str, ...], as_chat: str, as_list: str) -> None:
    """A blank line separates the texts of two messages, unless the boundary is within a call. If the client's API
    returns a list of items, no empty line is needed between texts that other items already separate.
    """
    assert said("chat", *steps) == as_chat
    assert said("responses", *steps) == as_list


def test_only_chat_needs_an_empty_line_after_a_call() -> None:
    """If a call is between two messages, only a chat client receives the empty line, because a chat answer has a single
    text.
    """
    steps = ("Hi", "|", CALL, "|", "you")
    assert said("chat", *steps, stop_after_tools="off") == "Hi\n\nyou"
    assert said("responses", *steps) == "Hiyou"
