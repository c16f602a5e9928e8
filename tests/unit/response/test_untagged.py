from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.answers import plan
from support.each import each
from support.effort import places
from support.growth import LINEAR, growth
from toolsim.core.events import CallDelta, CallStarted, ClientEvent, Closed, TextDelta
from toolsim.core.plan import Plan, Tool
from toolsim.core.report import Report
from toolsim.response.answer import Answer
from toolsim.response.judge import Judge
from toolsim.response.segments import Calls, Fragment, Segment
from toolsim.response.sentinel import Sentinel
from toolsim.response.untagged import Untagged

FOLDER = Path(__file__).parents[2] / "cases"
ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", *sorted((ROOT / "addon" / "docs").glob("*.md")))
CALLS = ("families.md", "parsing.md")
"""Documentation pages that contain a call in each row of a table. Most of their text is held back, as intended."""
TABLE = json.loads((FOLDER / "untagged.json").read_text(encoding="utf-8"))
TALK = json.loads((FOLDER / "talk.json").read_text(encoding="utf-8"))


def tools_of(table: dict[str, Any], strict: bool = False) -> list[Tool]:
    return [Tool(wire_name=fields["name"], strict=strict, **fields) for fields in table["tools"]]


def answer(the_plan: Plan, chunks: list[str]) -> tuple[list[list[Any]], Report]:
    """Return the texts and calls that the client receives if the answer's text arrives in ``chunks``, and the
    report.
    """
    report = Report()
    whole = Answer(the_plan, report)
    emitted: list[ClientEvent] = [event for chunk in chunks for event in whole.feed(TextDelta(chunk))]
    emitted += whole.feed(Closed())
    items: list[list[Any]] = []
    for event in emitted:
        match event:
            case TextDelta(text):
                if items and items[-1][0] == "text":
                    items[-1][1] += text
                else:
                    items.append(["text", text])
            case CallStarted(name=name):
                items.append(["call", name, ""])
            case CallDelta(text):
                items[-1][2] += text
    return items, report


def pieces(text: str, cuts: list[int] | range, limit: int = 200_000, fragments: bool = False) -> list[Segment]:
    """Return the segments (prose and blocks) of a text that is split at ``cuts``. Adjacent prose is joined."""
    parser = Untagged(Sentinel(limit=limit, fragments=fragments), Judge(PLAN, Report()), limit=limit)
    found = [piece for a, b in pairwise([0, *cuts, len(text)]) for piece in parser.feed(text[a:b])] + parser.finish()
    joined: list[Segment] = []
    for piece in found:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif not isinstance(piece, Fragment):
            joined.append(piece)
    return joined


def raw(found: list[Segment]) -> str:
    return "".join(piece if isinstance(piece, str) else piece.raw for piece in found if not isinstance(piece, Fragment))


PLAN = plan("responses", "responses", True, tools_of(TABLE))
CALL = '{"name": "get_weather", "arguments": {"city": "Bonn"}}'
SCRAPS = [
    CALL, '{"name": "add", "parameters": {"a": 1, "b": 2}}', '{"name": "nobody", "arguments": {}}', '{"a": 1}',
    f"[{CALL}, {CALL}]", f'{{"tool_calls": [{CALL}]}}', 'get_weather("Bonn")', "get_weather(city='Bonn')",
    '[function_call id=fc_1 name=get_weather arguments={"city": "Bonn"}]', "[function_call", "get_weather",
    "[", "{", "}", "]", "(", '"', "'", "\\", ",", ";", ":", "=", "`", "```", "````", "```json\n", "```python\n",
    "\n```", "\n```\n", "~~~\n", "\n", "\n\n", " ", "\t", "\r\n", "words ", "é", "\u2003", "<think>", "</think>",
    "[get_weather(", "get_weather{", "[ARGS]", "call:", "functions.", ":0", '{"city": "Bonn"}', "}", ")]",
    "print(", "x = ", " " * 60, "<tool_call>", "</tool_call>", f"<tool_call>{CALL}</tool_call>",
    '{"name": ', '"get_weather"', '"arguments": ', '{"name": "get_weather", "arguments": {"city": "',
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(SCRAPS) | st.text(max_size=3), max_size=14).map("".join)


@given(TEXTS, st.data(), st.sampled_from([8, 40, 120, 200_000]))
@example(f"```json\n{CALL}\n```", None, 200_000)
@example(f"```json\n{CALL}\\", None, 62)
@example(f'{{"na>me\n```json\n{CALL}\n```', None, 200_000)
@example(f"{CALL}{' ' * 120}\n", None, 120)
def test_any_text_at_any_split(text: str, data: st.DataObject | None, limit: int) -> None:
    """Any text is split into segments without loss, and in the same way wherever it is divided into chunks (rule 9 in
    ``untagged.py``).
    """
    whole = pieces(text, [], limit)
    assert raw(whole) == text
    assert pieces(text, range(1, len(text)), limit) == whole
    if data:
        assert pieces(text, sorted(data.draw(st.sets(st.integers(0, len(text))))), limit) == whole
    assert raw(pieces(text, range(1, len(text)), limit, fragments=True)) == text


@pytest.mark.parametrize(
    ("text", "is_call"),
    [
        (f"{CALL}\n{' ' * 99}x", True),
        (f"{CALL}{' ' * 99}\nx", False),
        (f"{CALL}{' ' * 99}\n", False),
        (f"```json\n{CALL}\n{' ' * 99}\n```", False),
        (f"```json\n{' ' * 99}{CALL}\n```", False),
    ],
)
def test_trailing_whitespace_counts_toward_the_limit(text: str, is_call: bool) -> None:
    """A call is accepted only if its line, including trailing whitespace, ends within the size limit."""
    whole = pieces(text, [], len(CALL) + 20)
    assert isinstance(whole[0], Calls) == is_call
    for cut in range(1, len(text)):
        assert pieces(text, [cut], len(CALL) + 20) == whole
    assert pieces(text, range(1, len(text)), len(CALL) + 20) == whole


def case_plan(case: dict[str, Any]) -> Plan:
    tools = tools_of(TABLE, case.get("strict", False))
    masked = frozenset(TABLE["masked"])
    return plan(
        "responses",
        "responses",
        True,
        tools,
        masked_tools=masked,
        policy=case.get("policy", {}),
        **case.get("plan", {}),
    )


@each("case", TABLE["cases"], ids=lambda case: case["case"])
def test_case(case: dict[str, Any]) -> None:
    """For each case, the items and repairs are as expected, whether the text arrives as one delta, character by
    character, or split in two at any point.
    """
    text = case["text"]
    for chunks in ([text], list(text), *([text[:cut], text[cut:]] for cut in places(1, len(text)))):
        items, report = answer(case_plan(case), chunks)
        assert items == case["items"]
        if "repairs" in case:
            assert report.repairs == case["repairs"]
            assert report.untagged == case.get("untagged", [])
        calls = [item for item in items if item[0] == "call"]
        assert report.calls == [name for _, name, _ in calls]
        assert not report.strict_failures
        assert calls or not report.untagged


TALK_PLAN = plan("responses", "responses", True, tools_of(TALK))


@each("number", range(len(TALK["answers"])))
def test_talk_about_calls_is_unchanged(number: int) -> None:
    """An answer that talks about JSON, tools or calls reaches the client unchanged, and no failure is counted."""
    text = TALK["answers"][number]
    for chunks in ([text], list(text), re.findall(r"\s*\S+\s*", text)):
        items, report = answer(TALK_PLAN, chunks)
        assert items == [["text", text]]
        assert not report.repairs
        assert not report.untagged


def test_corpus_of_talk_is_large() -> None:
    """The corpus contains at least a hundred different answers that talk about calls."""
    assert len(set(TALK["answers"])) >= 100


@pytest.mark.parametrize("text", TALK["read_as_calls"])
def test_text_in_the_form_of_a_call_is_a_call(text: str) -> None:
    """Text that has the position and the form of a call is parsed as a call, regardless of the meaning of the
    surrounding text.
    """
    assert [item[0] for item in answer(TALK_PLAN, [text])[0]].count("call") == 1


@each("text", [*TALK["answers"], *(case["text"] for case in TABLE["cases"])])
def test_text_within_a_line_is_not_held_back(text: str) -> None:
    """In the middle of a line of prose, the parser for untagged calls holds back no more text than the sentinel does
    (rule 4 in ``untagged.py``).
    """
    parser = Untagged(Sentinel(), Judge(PLAN, Report()))
    sentinel = Sentinel()
    given = plain = 0
    for fed, char in enumerate(text, 1):
        given += sum(len(piece if isinstance(piece, str) else piece.raw) for piece in parser.feed(char))
        plain += sum(len(piece if isinstance(piece, str) else piece.raw) for piece in sentinel.feed(char))
        if re.search(r"state_prose, Prose\(state_line\)", repr(parser)):
            assert fed - given == fed - plain


@each(
    ("text", "most"),
    [
        ('{"city": "Paris", "temperature": 18}', 3),
        ('{"name": "Paris", "arguments": {}}', 15),
        ('{"type": "object", "properties": {}}', 16),
        ("{\n  int total = add(1, 2);\n}", 6),
        ("{{ city }} and {% if %}", 1),
        ("[1] Smith, [2] Doe", 1),
        ("[link](https://example.com)\n[function](x)", 9),
        ("```sql\nprint({})\n```\n", 3),
        ("```python\nprint({})\n```\n", 16),
        ("```python\nimport os\n```\n", 17),
        ("So:\n```python\nprint({})\n```\n", 3),
        ('```json\n{"city": 1}\n```\n', 11),
        ("``` `` ` ``` x", 4),
        ("get some air\nget_out\nadd a line\nsearch for it", 6),
        ("a < b, <b>, <tool, <tool_calls>", 10),
        ("call me\nfunctional\nadd [1]", 8),
        ("[add one]\n[adder](x)", 4),
        ("add{ return a + b; }", 12),
    ],
)
def test_other_text_is_released_immediately(text: str, most: int) -> None:
    """Even if text is full of braces, brackets, fences and names, no more characters are held back than are needed to
    decide whether a call begins.
    """
    parser = Untagged(Sentinel(), Judge(PLAN, Report()))
    given, waits = 0, []
    for fed, char in enumerate(text, 1):
        given += sum(len(piece if isinstance(piece, str) else piece.raw) for piece in parser.feed(char))
        waits.append(fed - given)
    assert max(waits) == most


@pytest.mark.parametrize(("size", "most", "most_of_sentinel"), [(1, 0.015, 0.005), (4, 0.0075, 0.0025)])
def test_documentation_is_emitted_as_it_arrives(size: int, most: float, most_of_sentinel: float) -> None:
    """At most 1.5% of the characters in toolsim's documentation, which is full of fences and braces, wait for a later
    delta.
    """
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES if page.name not in CALLS)
    for parser, bound in ((Untagged(Sentinel(), Judge(PLAN, Report())), most), (Sentinel(), most_of_sentinel)):
        emitted = late = 0
        for start in range(0, len(text), size):
            delta = text[start : start + size]
            emitted += len(raw(parser.feed(delta)))
            late += start + len(delta) - max(emitted, start)
        assert 0 < late < bound * len(text)
        assert emitted + len(raw(parser.finish())) == len(text)


def test_long_candidates_are_read_once() -> None:
    """A long text that is rejected only at its end is scanned once, regardless of the size of the deltas."""

    def read(size: int) -> None:
        text = (
            '{"arguments": {"text": "' + "x{[`" * (size // 4) + '"}, "name": "nobody"}\n' + '{"name":\n' * (size // 9)
        )
        assert raw(pieces(text, range(3, len(text), 3))) == text

    assert growth(read, 20_000) < LINEAR


def test_repr_shows_the_states() -> None:
    """The ``repr`` shows the parser's state, followed by the states of the prose reader and the sentinel."""
    parser = Untagged(Sentinel(), Judge(PLAN, Report()))
    seen = []
    for text in ("\n", "x", "\n", "```", "json\n", CALL, "\n```", "\n", "```sq", "\n", "x"):
        parser.feed(text)
        found = re.match(r"Untagged\(state_(\w+), Prose\(state_(\w+)\), Sentinel", repr(parser))
        assert found is not None
        seen.append(found[2] if found[1] == "prose" else found[1])
    assert seen == [
        "start",
        "line",
        "indent",
        "indent",
        "before_form",
        *["behind_form"] * 2,
        "between",
        *["code"] * 3,
    ]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_preview_is_not_an_introduction(size: int) -> None:
    """A sentence that introduces an example is recognized even if there is a malformed block between the sentence and
    the call. Previews of blocks do not change this.
    """
    text = f'An example of <tool_call>{{"name": "f" x:\n{CALL}'
    cuts = range(size, len(text), size)
    assert pieces(text, cuts) == pieces(text, cuts, fragments=True) == [text]
