from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan
from support.each import each
from support.growth import LINEAR, growth
from toolsim.core.events import CallDelta, CallStarted, ClientEvent, Closed, Ended, Finished, FinishReason, TextDelta
from toolsim.core.plan import Tool
from toolsim.core.policy import ApiName
from toolsim.core.report import Report
from toolsim.response.answer import Answer
from toolsim.response.judge import Judge
from toolsim.response.repetition import CUT, ENDLESS
from toolsim.response.sentinel import Sentinel
from toolsim.response.untagged import Untagged

SCHEMA = {"type": "object", "properties": {"sides": {"type": "integer"}}, "required": ["sides"]}
A, B = '{"sides": 6}', '{"sides": 20}'
D6, D20 = (f'{{"name": "roll", "arguments": {arguments}}}' for arguments in (A, B))
TOOLS = [Tool("roll", "roll", parameters=SCHEMA)]
LISTS = {"bare": ("[", "]"), "fenced": ("```json\n[\n    ", "\n]\n```"), "behind words": ("Rolling.\n\n[", "]")}

SCRAPS = [f"{D6}, " * 40, D6, D20, ", ", " ", "[", "]", "```json\n", "```python\n", "print(", "\n```", "x"]


def client_output(
    chunks: list[str], reason: FinishReason = "length", client: ApiName = "chat", strict: bool = False, **fields: Any
) -> tuple[str, list[str], object, Report]:
    """Return the client's text, calls and finish reason, and the report, for text that arrives in ``chunks``."""
    report = Report()
    tools = [Tool("roll", "roll", parameters=SCHEMA, strict=strict)]
    answer = Answer(plan(client, "chat", True, tools, **fields), report)
    events: list[ClientEvent] = [event for chunk in chunks for event in answer.feed(TextDelta(chunk))]
    events += [event for last in (Finished(reason), Closed()) for event in answer.feed(last)]
    calls: list[str] = []
    for event in events:
        if isinstance(event, CallStarted):
            calls.append("")
        elif isinstance(event, CallDelta):
            calls[-1] += event.text
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    return text, calls, next(event.reasons[0] for event in events if isinstance(event, Ended)), report


def same_however_cut(text: str, reason: FinishReason = "length") -> tuple[str, list[str], object]:
    """Return the text, calls and finish reason that the client receives, after checking that they do not depend on
    where the text is split.
    """
    whole = client_output([text], reason)[:3]
    assert client_output(list(text), reason)[:3] == whole
    for at in {1, len(text) // 3, len(text) // 2, len(text) - 1}:
        assert client_output([text[:at], text[at:]], reason)[:3] == whole
    return whole


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("strict", [False, True])
def test_truncated_loop_calls_once(kind: str, strict: bool) -> None:
    """If a list of calls was cut off while the model repeated one call, the client receives this call once. With fewer
    than three repetitions, the list is text.
    """
    head = f"{LISTS[kind][0]}{D20},\n    "
    text = head + ",\n    ".join([D6] * (CUT + 2))
    third = len(head) + CUT * len(D6) + (CUT - 1) * len(",\n    ")
    words = "Rolling.\n\n" if kind == "behind words" else ""
    for at in range(len(head), len(text) + 1):
        expected = (text[:at], [], "length") if at < third else (words, [B, A], "tool_calls")
        assert client_output([text[:at]], strict=strict)[:3] == expected
        if at % 5 == 0:
            assert same_however_cut(text[:at]) == expected


@pytest.mark.parametrize(
    "rest",
    [', {"name": "roll", "arguments": {"sides": 8', ", [", ', {"type"', ', {"name": "roll", "arguments": {}'],
)
def test_different_item_ends_the_loop(rest: str) -> None:
    """If a different item follows the repetitions in a list that was cut off, the list is text, because the items after
    the cut are unknown.
    """
    text = "[" + ", ".join([D6] * CUT) + rest
    assert same_however_cut(text) == (text, [], "length")


@each("kind", LISTS)
@each("times", [1, 2, CUT, ENDLESS - 1])
def test_complete_list_keeps_its_calls(kind: str, times: int) -> None:
    """In a complete list, all calls are kept, even repeated ones, because the model closed the list itself."""
    head, tail = LISTS[kind]
    for reason in ("stop", "length"):
        assert same_however_cut(head + ", ".join([D6] * times) + tail, reason)[1] == [A] * times


def test_only_truncated_list_is_a_loop() -> None:
    """A list of calls counts as a loop only if it was cut off. If the model stopped after an item, only the closing
    bracket is missing, and all calls are kept.
    """
    text = "[" + ", ".join([D6] * CUT)
    assert same_however_cut(f"{text}, {D6[:9]}", "stop")[1] == []
    assert same_however_cut(text, "stop")[1] == [A] * CUT


@pytest.mark.parametrize("client", ["chat", "responses"])
@pytest.mark.parametrize("kind", LISTS)
def test_endless_loop_ends_the_answer(client: ApiName, kind: str) -> None:
    """If the model repeats a call endlessly, the answer ends. The client receives the call once, regardless of the text
    that follows.
    """
    text = f"{LISTS[kind][0]}{D20}, " + ", ".join([D6] * ENDLESS)
    for chunks in ([text], list(text), [f"{text}, {D20}]"], list(f"{text}, {D6}, {D6}]\n```\nDone.")):
        prose, calls, reason, report = client_output(chunks, "stop", client)
        assert prose.strip() in ("", "Rolling.")
        assert (calls, reason) == ([B, A], "tool_calls")
        assert report.repairs[-1] == "REPEATED_CALL:roll"
    assert report.tool_cutoff == "the same call again and again"


@pytest.mark.parametrize("times", [CUT + 1, ENDLESS + 2])
def test_loop_is_text_without_repairs(times: int) -> None:
    """With repairs turned off, a list that was cut off while it repeated a call remains text."""
    text = "[" + ", ".join([D6] * times)
    assert client_output([text], policy={"repair": "off"})[:3] == (text, [], "length")


def test_blocks_are_emitted_one_by_one() -> None:
    """Repeated calls in separate tags are emitted as soon as they are complete, and their number is not limited."""
    assert client_output([f"<tool_call>{D6}</tool_call>\n"] * (ENDLESS + 9))[1] == [A] * (ENDLESS + 9)


@given(st.sampled_from([head for head, _ in LISTS.values()]), st.lists(st.sampled_from(SCRAPS), max_size=9), st.data())
def test_pieces_equal_the_text_at_any_split(head: str, scraps: list[str], data: st.DataObject) -> None:
    """Even if a text contains loops, the segments parsed from it add up to the text, and do not depend on where the
    text is split.
    """
    text = head + "".join(scraps)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    found = []
    for places in ([], cuts):
        parser = Untagged(Sentinel(), Judge(plan("chat", "chat", True, TOOLS), Report()))
        pieces = [piece for a, b in pairwise([0, *places, len(text)]) for piece in parser.feed(text[a:b])]
        pieces += parser.finish(cut=True)
        assert "".join(piece if isinstance(piece, str) else piece.raw for piece in pieces) == text
        found.append([piece for piece in pieces if not isinstance(piece, str)])
    assert found[0] == found[1]


def test_time_is_linear() -> None:
    """A list of many almost identical calls is parsed in linear time."""

    def read(size: int) -> None:
        items = [D20 if number % 30 == 0 else D6 for number in range(size)]
        client_output([f"{item}, " for item in ["[", *items]])

    assert growth(read, 200) < LINEAR
