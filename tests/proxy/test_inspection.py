"""Tests for the flow files that mitmdump writes. They contain streamed turns, which the documented filters find."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import flowfilter
from mitmproxy.http import HTTPFlow
from mitmproxy.io import FlowReader
from support.line import Line, arrivals
from support.mitmdump import ADDON, ROOT, Mitmdump
from support.text_backend import TextBackend, refuses, says

CALL = '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Bonn\\"}"}</tool_call>'
BROKEN = '<tool_call>{"name":"gone","arguments":"{}"}</tool_call>'
COMMA = '<tool_call>{"name":"get_weather","arguments":{"city":"Bonn",}}</tool_call>'

TURNS = {
    "call": says(f"Look: {CALL}"),
    "two": says(CALL, CALL),
    "text": says("No need."),
    "unknown": says(BROKEN),
    "repair": says(COMMA),
    "refused": refuses(429, "Slow down."),
    "eof": says("No", ending="eof"),
    "tail": says(CALL, "and on and on"),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, ask: Any) -> Iterator[Path]:
    """A flow file with one exchange of each kind. Each prompt names its kind."""
    path = tmp_path_factory.mktemp("flows") / "turns.flow"
    with TextBackend(list(TURNS.values())) as backend:
        with Mitmdump(backend.url, arguments=["-w", str(path)]) as proxy, Line(proxy.url) as line:
            for name in TURNS:
                words = " some words" if name == "text" else ""
                message = {"role": "user", "content": f"kind:{name}.{words}"}
                line.post("/v1/chat/completions", ask(stream=True, messages=[message]))
            line.request("GET", "/v1/models")
        yield path


def read(path: Path) -> list[HTTPFlow]:
    with path.open("rb") as file:
        return [flow for flow in FlowReader(file).stream() if isinstance(flow, HTTPFlow)]


def test_streams_are_stored(recorded: Path) -> None:
    """In a flow file, the flow contains the streamed answer as the client received it. After mitmproxy's "revert", it
    contains the backend's answer.
    """
    flow = read(recorded)[0]
    assert flow.response is not None
    sent = flow.response.content or b""
    assert b'"finish_reason":"tool_calls"' in sent
    assert b"tool_call>" not in sent
    assert sent.endswith(b"data: [DONE]\n\n")
    assert b"CLIENT TOOL CATALOG" in (flow.request.content or b"")
    flow.revert()
    assert b"tool_call>" in (flow.response.content or b"")
    assert b'"tools"' in (flow.request.content or b"")
    assert b"CLIENT TOOL CATALOG" not in (flow.request.content or b"")


def test_refusals_are_stored(recorded: Path) -> None:
    """If the backend refuses a request, the flow in the flow file contains the body of the error."""
    flow = read(recorded)[list(TURNS).index("refused")]
    assert flow.response is not None
    assert b"Slow down." in (flow.response.content or b"")


RECIPES = [
    ('~comment "#[0-9]+ turn"', list(TURNS)),
    ('~comment "#3 "', ["text"]),
    ("~marked", ["unknown", "refused", "eof"]),
    ('~marker "[✖x]"', ["refused", "eof"]),
    ('~marker "[⚠w]"', ["unknown"]),
    ('~comment "[0-9] call"', ["call", "two", "repair", "tail"]),
    ('~comment "[2-9] calls"', ["two"]),
    ("~comment get_weather", ["call", "two", "repair", "tail"]),
    ('~comment "[0-9] .*failure"', ["unknown"]),
    ('~comment "[0-9] repair"', ["repair"]),
    ('~comment "cut off"', ["tail"]),
    ("~comment error:", ["eof"]),
    ('~comment "HTTP 429"', ["refused"]),
    ("~comment UNKNOWN_TOOL", ["unknown"]),
    ('~comment "#[0-9]+ turn" & !~marked & !~comment get_weather', ["text"]),
    ('~comment "some words"', ["text"]),
    ('~bq "some words"', ["text"]),
    ('~bs "finish_reason.:.tool_calls"', ["call", "two", "repair", "tail"]),
]


def kinds(flows: Iterable[HTTPFlow]) -> list[str]:
    """Return the key in ``TURNS`` for each flow of a turn."""
    return [name for flow in flows for name in TURNS if f"kind:{name}.".encode() in (flow.request.content or b"")]


@pytest.mark.parametrize(("recipe", "found"), RECIPES)
def test_documented_filters_find_their_flows(recorded: Path, recipe: str, found: list[str]) -> None:
    """Each filter on the documentation page finds the flows that the page describes, even if the addon is not
    loaded.
    """
    matches = flowfilter.parse(recipe)
    assert kinds(flow for flow in read(recorded) if matches(flow)) == found


def test_mitmdump_accepts_a_filter(recorded: Path, tmp_path: Path) -> None:
    matching = tmp_path / "matching.flow"
    command = [sys.executable, "-c", "from mitmproxy.tools.main import mitmdump; mitmdump()"]
    recipe, found = next((recipe, found) for recipe, found in RECIPES if "&" in recipe)
    subprocess.run([*command, "-q", "-nr", str(recorded), "-w", str(matching), recipe], check=True, timeout=60)
    assert kinds(read(matching)) == found


def test_every_documented_filter_is_tested() -> None:
    """``RECIPES`` contains every filter on the documentation page."""
    section = (
        (ROOT / "addon" / "docs" / "inspect.md").read_text().split("<!-- inspect -->")[1].split("<!-- /inspect -->")[0]
    )
    listed = re.findall(r"^\| `(~[^`]+)` \|", section, re.MULTILINE)
    assert len(listed) > 10
    assert set(listed) <= {recipe for recipe, _ in RECIPES}


def test_view_in_a_terminal(recorded: Path) -> None:
    """With the addon, ``mitmdump -nr FILE`` shows each flow in toolsim's view instead of its raw bytes."""
    command = [sys.executable, "-c", "from mitmproxy.tools.main import mitmdump; mitmdump()"]
    printed = subprocess.run(
        [
            *command,
            "-nr",
            str(recorded),
            "-s",
            str(ADDON),
            "--set",
            "flow_detail=4",
            "--set",
            "content_view_lines_cutoff=99",
        ],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    ).stdout
    assert "THE MODEL WROTE" in printed
    assert "╰─ ✗ left as text: the tool is not on offer (UNKNOWN_TOOL)" in printed
    assert "▸ the tool catalog, collapsed: 1 tool" in printed


def test_recording_does_not_delay_a_stream(ask: Any) -> None:
    """Even if a stream is recorded, each delta reaches the client as soon as the backend has sent it."""
    with (
        TextBackend([says(*["word "] * 6, pause=0.3)]) as backend,
        Mitmdump(backend.url) as proxy,
        Line(proxy.url) as line,
    ):
        response = line.begin("POST", "/v1/chat/completions", ask(stream=True))
        times = [at for at, data in arrivals(response) if b"word" in data]
    assert len(times) == 6
    assert all(after - before > 0.1 for before, after in pairwise(times)), times
