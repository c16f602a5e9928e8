"""Tests for reading other proxies' answers, and for the table on the benchmarks page."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from bench.peers import PAGE, call_seen, deltas, table
from bench.table import Row


def stream(*pieces: dict[str, Any]) -> bytes:
    frames = [{"choices": [{"index": 0, "delta": piece}]} for piece in pieces]
    return b"".join(f"data: {json.dumps(frame)}\n\n".encode() for frame in frames) + b"data: [DONE]\n\n"


def call(name: str | None, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("pieces", "seen"),
    [
        ([call("write", '{"rows":'), call(None, "[]}")], "a call"),
        ([call("write", '"{}"')], "a broken call"),
        ([call("write", '{"rows":')], "a broken call"),
        ([{"content": "<tool_call>"}, {"content": None}], "text"),
    ],
)
def test_call_counts_if_complete(pieces: list[dict[str, Any]], seen: str) -> None:
    """A call counts as correct only if it is complete and its arguments are an object."""
    assert call_seen(stream(*pieces)) == seen
    assert list(deltas(stream(*pieces))) == pieces


def test_table_has_the_columns_of_the_page() -> None:
    """The table has one row per proxy, with CPU time as a ratio, and the same columns as the table on the benchmarks
    page.
    """
    values = [("x: CPU", 40.0, ""), ("x: first text", 2.0, ""), ("x: memory", 80.0, ""), ("x: calls", 1.0, "a call")]
    rows = [asdict(Row("peers", name, value, "", reference=20.0, note=note)) for name, value, note in values]
    head, line, row = table(rows).split("\n")
    assert row == "| x | 2.0 | 0.1 | 80 | a call |"
    shown = PAGE.read_text().split("<!-- peers -->\n")[1].split("<!-- /peers -->")[0].splitlines()
    assert shown[:2] == [head, line]
    assert len(shown) == 6
