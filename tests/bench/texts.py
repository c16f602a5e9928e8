"""Sample texts for the benchmarks: prose, and calls of any size."""

from __future__ import annotations

import json


def prose(size: int) -> str:
    """Return prose with a few angle brackets, as they occur in code and mathematics."""
    return ("If a < b, use the <b>first</b> one; else look it up in the table below.\n" * (size // 70 + 1))[:size]


def arguments(size: int) -> str:
    """Return the JSON arguments of a call that writes code to a file, with a long string full of escapes."""
    return json.dumps({"path": "a.py", "text": 'print("hello, world")\n' * (size // 26)})


def call(size: int) -> str:
    """Return the text of a call whose arguments are a string that contains a JSON document."""
    return f"<tool_call>{json.dumps({'name': 'write', 'arguments': arguments(size)})}</tool_call>"


def object_call(size: int) -> str:
    """Return the text of a call whose arguments are an object of many small values."""
    rows = [{"id": number, "name": f"row {number}", "ok": True} for number in range(size // 45)]
    return f'<tool_call>{{"name":"write","arguments":{json.dumps({"rows": rows})}}}</tool_call>'


def pieces(text: str, size: int) -> list[str]:
    """Split text into deltas of ``size`` characters."""
    return [text[at : at + size] for at in range(0, len(text), size)]
