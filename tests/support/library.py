"""Functions that parse a text with ``toolsim.parsing``, streamed or not, or return the proxy's answer for this text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

from support.answers import Seen, read, rewrite
from support.wire import backend_answer
from toolsim.core.plan import Plan
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.parsing import InvalidCall, Parsed, Part, Prose, StreamParser
from toolsim.request.rewrite import rewrite_request

Tools = list[dict[str, Any]]


def streamed(pieces: Sequence[str], tools: Tools, *, cut: bool = False) -> Parsed:
    """Return the result of parsing these deltas, with adjacent prose joined."""
    parser = StreamParser(tools)
    parts: list[Part] = []
    for part in [part for piece in pieces for part in parser.feed(piece)] + parser.finish(cut=cut):
        last = parts[-1] if parts else None
        if isinstance(part, Prose) and isinstance(last, Prose):
            parts[-1] = Prose(last.text + part.text)
        else:
            parts.append(part)
    assert parser.done
    return Parsed(tuple(parts))


def pieces(text: str, seed: str, most: int = 12) -> list[str]:
    """Return the text, split at up to ``most`` random positions that depend only on the text's length and ``seed``."""
    random = Random(seed)
    places = sorted({0, len(text), *(random.randint(0, len(text)) for _ in range(random.randint(1, most)))})
    return [text[start:end] for start, end in pairwise(places)]


def items(parsed: Parsed) -> list[list[Any]] | str:
    """Return an answer as a list of its texts and calls or, if it has an error, the error code."""
    if parsed.error is not None:
        return "invalid_tool_call"
    return [["text", part.text] if isinstance(part, Prose) else ["call", part.name, part.arguments]
            for part in parsed.parts if not isinstance(part, InvalidCall)]  # fmt: skip


def plan_of(api: ApiName, tools: Tools, *, stream: bool, **policy: Any) -> Plan:
    """Return the plan for a client's request with these tools, which are declared in the Responses API's format."""
    prompt: dict[str, Any] = {"input": "x"} if api == "responses" else {"messages": [{"role": "user", "content": "x"}]}
    if api == "chat":
        tools = [
            {"type": "function", "function": {key: tool[key] for key in tool if key != "type"}}
            if tool.get("type", "function") == "function"
            else tool
            for tool in tools
        ]
    elif api == "messages":
        prompt["max_tokens"] = 99
        tools = [
            {"name": tool["name"], "input_schema": tool.get("parameters", {"type": "object"})}
            | {key: tool[key] for key in ("strict",) if key in tool}
            for tool in tools
        ]
    path = "/v1/" + {"chat": "chat/completions"}.get(api, api)
    body = json.dumps({"model": "m", "tools": tools, "stream": stream, **prompt}).encode()
    asked = rewrite_request(api, path, body, Policy(**{"backend": "chat"} | policy), output_mode=None, report=Report())
    assert asked is not None
    return asked.plan


def by_proxy(
    api: ApiName, tools: Tools, text: Sequence[str], *, stream: bool, finish: str = "stop", cut: int = 0, **policy: Any
) -> Seen:
    """Return the answer that an official client reads if a chat backend streams text in these deltas.

    ``cut``: the length of the chunks in which the backend's bytes arrive; 0 means a single chunk.
    """
    the_plan = plan_of(api, tools, stream=stream, **policy)
    kind, body = backend_answer("chat", True, [piece for piece in text if piece], finish)
    rewriter, frames = rewrite(the_plan, kind, body, cut)
    return read(api, stream, frames, rewriter.status)
