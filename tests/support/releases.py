"""Records when the text and the calls in an answer are passed on to the client, so that a change that delays them is
noticed.

``make releases`` writes ``tests/cases/releases.json``. Each row is a text, parsed character by character and in deltas
of four characters. What is passed on after each delta is written as runs:

    12      after each of 12 deltas, exactly the text of the delta
    -5      after each of 5 deltas, nothing
    +7      after one delta, 7 characters, some of which were held back before
    +0!!    after one delta, two calls

The last delta is the end of the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from support.answers import plan
from support.malformed import FORMS, TOOLS
from toolsim.core.events import CallDelta, CallEnded, Closed, Finished, TextDelta
from toolsim.core.plan import Tool
from toolsim.core.report import Report
from toolsim.response.answer import Answer

CASES = Path(__file__).parents[1] / "cases"
RELEASES = CASES / "releases.json"
SIZES = (1, 4)
PROSE = {
    "prose": "The weather in Bonn is fine: 18 degrees, light rain. [1] See <https://x.test>; a < b, c > d.\n\n- one\n",
    "indented": "  First line.\n\n    an indented one\n\tand another one (list of all). list them, write it down.\n",
    "Markdown": "# Title\n\nUse `write` or **list**. ~~Not this~~.\n\n> a quotation\n\n1. write(path)\n2. [list](x)\n",
    "code": "Here it is:\n\n```python\ndef write(path):\n    return [list(x) for x in path if x < 3]\n```\n\nDone.",
    "code in other fences": "```rust\nfn main() { write(\"a\"); }\n```\n~~~\nlist()\n~~~\n````json\n{}\n````\nend",
    "fence of JSON": 'Set this:\n\n```json\n{"compilerOptions": {"strict": true}}\n```\n\nThen run it.',
    "JSON": '{"city": "Bonn", "temperature": 18}\n',
    "JSON with a name": '{"name": "Bonn", "population": 330000, "list": [1, 2]}\n',
    "list of JSON": '[{"city": "Bonn"}, {"city": "Oslo"}]\n[1, 2, 3]\n["write", "list"]\n',
    "HTML": "<div class=\"a\"><p>x</p></div>\n<table><tr><td>1</td></tr></table>\n<tool>hammer</tool>\n<br/>\n",
    "thought": "<think>\nLet me think: {a} [b] <c>.\n</think>\n\nIt is fine.\n",
    "thought of another family": "[THINK]Let me see.[/THINK]It is 4, [a] and <b>.",
    "a name": "write\nlist: a, b\nwriter(x)\nlist\n(all)\nlist[0]\ncall: me\nfunctools\ncommentary to=me\n",
    "a tag in a sentence": "The tag <tool_call> opens it, and </tool_call> closes it; <tool_calls>, <tool_cal, <TOO\n",
    "half a tag": "a <tool_ca\n<tool_call\n<tool_call>x\n<|tool\n[TOOL_\n<function=\n<function=write\n<|channel|>final",
    "inline code": 'Write `<tool_call>{"name": "list", "arguments": {}}</tool_call>` to call it, and then go on.\n',
    "quotation": '> <tool_call>{"name": "list", "arguments": {}}</tool_call>\n> quoted\n\nso.\n',
    "a call in the middle": 'Some words.\n\n{"name": "list", "arguments": {}}\n\nAnd others.\n',
    "an unknown name": '{"name": "erase", "arguments": {}}\n<tool_call>{"name": "erase"}</tool_call>\n',
    "a call that is broken": '<tool_call>{"name": "list", "arguments": {]}</tool_call> and text.\nMore.\n',
    "a call that never ends": 'x <tool_call>{"name": "write", "arguments": {"path": "a',
    "text between calls": "list()\n\nand\n\n<tool_call>{\"name\": \"list\"}</tool_call>\nthen\n```\nlist()\n```\n",
    "two calls": '{"name": "list", "arguments": {}}\n{"name": "write", "arguments": {"path": "a"}}\n\nDone.\n',
}  # fmt: skip
"""Texts without calls, texts that resemble calls, and calls within other text. ``cases`` also yields texts from the
tables of cases.
"""


@dataclass(frozen=True)
class Case:
    """A text to parse. ``is_incremental``: whether arguments are streamed, in which case their characters are counted,
    like those of text.
    """

    name: str
    text: str
    tools: list[dict[str, Any]] = field(default_factory=lambda: TOOLS)
    is_incremental: bool = False


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for name, text in PROSE.items():
        yield Case(name, text)
    for form in FORMS:
        yield Case(f"{form.form}, two", f"I write.\n{form.two}\nDone.")
        yield Case(f"{form.form}, streamed", form.text, is_incremental=True)
    for case in _load("call_forms")["cases"][::2]:
        yield Case(f"call form: {case['case']}", case["text"])
    table = _load("untagged")
    for case in table["cases"][::2]:
        yield Case(f"untagged: {case['case']}", case["text"], table["tools"])
    table = _load("talk")
    for number, text in enumerate(table["answers"]):
        yield Case(f"talk: {number}", text, table["tools"])


def _load(table: str) -> dict[str, Any]:
    return json.loads((CASES / f"{table}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def steps(case: Case, size: int) -> list[tuple[int, int, int]]:
    """Return, for each delta, the numbers of characters received, characters passed on, and calls passed on.

    The last entry is for the end of the text.
    """
    tools = [Tool(tool["name"], tool["name"], parameters=tool.get("parameters")) for tool in case.tools]
    policy = {"stop_after_tools": "off", "stream_arguments": "incremental" if case.is_incremental else "buffered"}
    answer = Answer(plan("responses", "chat", True, tools, policy=policy), Report())
    pieces = [case.text[at : at + size] for at in range(0, len(case.text), size)]
    emitted = [(len(piece), answer.feed(TextDelta(piece))) for piece in pieces]
    emitted.append((0, answer.feed(Finished("stop")) + answer.feed(Closed())))
    kinds = (TextDelta, CallDelta) if case.is_incremental else TextDelta
    return [
        (
            arrived,
            sum(len(event.text) for event in events if isinstance(event, kinds)),
            sum(isinstance(event, CallEnded) for event in events),
        )
        for arrived, events in emitted
    ]


def releases(case: Case, size: int) -> str:
    """Return when a case's text and calls are passed on, in the notation above, for deltas of ``size`` characters."""
    marks = [
        f"+{emitted}{'!' * calls}" if calls or emitted not in (0, arrived) else "" if emitted else "-"
        for arrived, emitted, calls in steps(case, size)
    ]
    runs: list[str] = []
    for mark, run in groupby(marks):
        count = sum(1 for _ in run)
        runs += [f"{mark}{count}"] if mark in ("", "-") else [mark] * count
    return " ".join(runs)


def curve(released: str, case: Case, size: int) -> list[tuple[int, int]]:
    """Return, for each delta, the total number of characters and calls passed on so far."""
    arrived = [min(size, len(case.text) - at) for at in range(0, len(case.text), size)]
    found: list[tuple[int, int]] = []
    for run in released.split():
        if run.startswith("+"):
            found.append((int(run.strip("+!")), run.count("!")))
        elif run.startswith("-"):
            found += [(0, 0)] * int(run[1:])
        else:
            found += [(size, 0) for size in arrived[len(found) : len(found) + int(run)]]
    return list(accumulate(found, lambda before, now: (before[0] + now[0], before[1] + now[1])))


def recorded() -> dict[str, list[str]]:
    """Return the releases in the file that ``make releases`` has written."""
    found: dict[str, list[str]] = json.loads(RELEASES.read_text(encoding="utf-8"))
    return found


def dumped() -> str:
    """Return the current table of releases as JSON."""
    rows = {case.name: [releases(case, size) for size in SIZES] for case in cases()}
    lines = (f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(row)}" for name, row in rows.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    RELEASES.write_text(dumped(), encoding="utf-8")
