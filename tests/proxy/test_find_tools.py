"""Tests for a catalog that initially contains only the names of tools. Each lookup takes one round."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.line import Line
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says

FIND = '<tool_call>{"name":"find_tools","arguments":{"names":["tool_7"]}}</tool_call>'
CALL = '<tool_call>{"name":"tool_7","arguments":{"city":"Bonn"}}</tool_call>'
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{number}", "description": "Does it.", "parameters": PARAMETERS}}
    for number in range(20)
]


@pytest.mark.slow
def test_lookup_is_a_separate_round(tmp_path: Path) -> None:
    """The model receives the names of the tools, and then the catalog entry that it looks up. The client receives only
    the call, and the recordings of all rounds can be replayed with the same result.

    If a request has few tools, its catalog is complete from the start.
    """
    captured = tmp_path / "captured"
    with (
        TextBackend(chunk_size=5) as backend,
        Mitmdump(backend.url, toolsim_catalog_budget=600, toolsim_capture=str(captured)) as proxy,
        Line(proxy.url) as line,
    ):
        for times, stream in enumerate((False, True), 1):
            body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "Weather in Bonn?"}]}
            backend.play([says("One moment.\n", FIND), says(CALL), says(CALL)], chunk_size=5)
            reply = line.post("/v1/chat/completions", body | {"tools": TOOLS})
            few = line.post("/v1/chat/completions", body | {"tools": TOOLS[7:9]})
            proxy.wait_for(r'"rounds": 2', count=times)
            assert (reply.status, few.status) == (200, 200)
            text = reply.body.decode()
            assert "find_tools" not in text
            assert "tool_7" in text
            assert "One m" in text  # The text of a stream is split into deltas.
            first, second, whole = (str(exchange.transcript) for exchange in backend.exchanges)
            assert "- tool_12: Does it." in first
            assert first.count('"city": <string>') == 0
            assert second.count('"city": <string>') == 1
            assert whole.count('"city": <string>') == 2
            assert "find_tools" not in whole
    replayed = subprocess.run(
        [sys.executable, "-m", "toolsim.recordings.replay", str(captured)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert replayed.stdout.endswith("6 recorded exchanges, none differ\n"), replayed.stdout + replayed.stderr
