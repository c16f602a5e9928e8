"""Renders the page for a request: its tools, and the conversation by role, with calls and outputs marked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolsim.core.conversation import (
    Call,
    CallOutput,
    ClientRequest,
    Declaration,
    HostedItem,
    Image,
    Item,
    Message,
    Part,
    Raw,
    Text,
    Thought,
)
from toolsim.core.errors import BadRequest
from toolsim.core.plan import Tool, ToolChoice
from toolsim.pages.blocks import prose_and_blocks
from toolsim.pages.json_text import compact, pretty
from toolsim.pages.page import Page, clip, plural
from toolsim.pages.read_prompt import Catalog, find_catalog, read_call_record, read_output_record, wanted
from toolsim.pages.signature import signature
from toolsim.wire.apis import APIS, api_of_request
from toolsim.wire.json_codec import parse_object
from toolsim.wire.json_fields import mapping, string

_BAR = "│ "
_INPUT_BAR = "┆ "

# Fields that are not listed as settings, because the page shows them in other sections.
_SHOWN = frozenset(
    {"model", "stream", "tools", "functions", "tool_choice", "function_call", "parallel_tool_calls"}
).union(*(api.conversation_fields for api in APIS.values()))
_MAX_SETTINGS = 24
_MAX_DESCRIPTION = 300


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """Facts about a request in addition to its body."""

    original: bytes | None = None
    """The client's body if ``show_request`` receives the body sent to the backend, otherwise None."""
    report: Mapping[str, Any] | None = None
    """The value of ``flow.metadata["toolsim"]``."""


def show_request(data: bytes, facts: RequestFacts) -> str:
    """Return the page for a request with the body ``data``. Takes linear time, and never raises an exception."""
    report = mapping(facts.report)
    page = Page()
    body = parse_object(data)
    if body is None:
        page.title("REQUEST", ["not a JSON object"])
        page.gap()
        page.text(pretty(data.decode(errors="replace")))
        return str(page)
    original = parse_object(facts.original) if facts.original is not None else None
    request, problem = _read(body)
    client_request, _ = _read(original) if original is not None else (request, "")
    catalog = next(_catalogs(request), None) if request is not None else None
    page.title("REQUEST", _facts(body, request, client_request, catalog, report))
    if problem:
        page.heading("NOT A VALID REQUEST")
        page.text(problem)
        page.gap()
        page.text(pretty(data.decode(errors="replace")))
        return str(page)
    assert request is not None
    _settings(page, body)
    _tools(page, client_request, catalog)
    page.heading("CONVERSATION", "as sent to the backend" if original is not None else "")
    if request.instructions:
        _message(page, _instructions(request), "instructions", catalog)
    speaker = ""
    for item in request.items:
        speaker = _item(page, item, catalog, speaker)
    _dropped(page, report)
    return str(page)


def read_conversation(data: bytes) -> tuple[Item, ...]:
    """Return the items of a request body, with the instructions first, or () if the body cannot be parsed.

    Never raises an exception.
    """
    body = parse_object(data)
    request = _read(body)[0] if body is not None else None
    if request is None:
        return ()
    return (*([_instructions(request)] if request.instructions else []), *request.items)


def conversation_rows(items: Iterable[Item]) -> Iterator[tuple[str, str]]:
    """Yield rows of (speaker, text) for messages, calls and outputs.

    The record of a call or an output in a message's text becomes a separate row.
    """
    for item in items:
        match item:
            case Message():
                text = "\n".join(part_text(part) for part in item.parts)
                catalog = find_catalog(text) if item.role != "assistant" else None
                for kind, segment in _segments(text, item.role, catalog):
                    if segment.strip():
                        yield (item.role if kind == "text" else kind), segment.strip("\r\n")
            case Call():
                yield "call", _call_line(item)
            case Thought():
                yield "thought", item.text
            case CallOutput():
                yield "output", _output_line(item.call_id, "\n".join(part_text(part) for part in item.parts))


def _read(body: Mapping[str, Any]) -> tuple[ClientRequest | None, str]:
    """Parse a request body in any API's format.

    Return the request, or None and a description of the problem.
    """
    try:
        return api_of_request(body).read(body), ""
    except BadRequest as bad:
        return None, bad.error.message


def _catalogs(request: ClientRequest) -> Iterator[Catalog]:
    messages = [_instructions(request), *(item for item in request.items if isinstance(item, Message))]
    for text in (part.text for message in messages for part in message.parts if isinstance(part, Text)):
        if (catalog := find_catalog(text)) is not None:
            yield catalog


def _instructions(request: ClientRequest) -> Message:
    return Message("system", (Text(request.instructions),))


# -- head --


def _facts(
    body: Mapping[str, Any],
    request: ClientRequest | None,
    client_request: ClientRequest | None,
    catalog: Catalog | None,
    report: Mapping[str, Any],
) -> Iterator[str]:
    client, backend = string(report.get("client")), string(report.get("backend"))
    if client and backend and client != backend:
        yield f"{client} → {backend}"
    elif request is not None:
        yield request.api
    yield clip(string(body.get("model")), 80)
    if request is not None:
        yield "streamed" if request.form.stream else "whole"
    if client_request is not None and client_request.tools:
        yield f"tool_choice {_choice(client_request.tool_choice)}"
        if not client_request.parallel:
            yield "one call at a time"
    elif request is not None and catalog is not None and (line := wanted(request.items)):
        yield line


def _choice(choice: ToolChoice) -> str:
    names = sorted(choice.names or ())
    return choice.mode if choice.names is None else f"{choice.mode}: {clip(', '.join(names) or 'none', 120)}"


def _settings(page: Page, body: Mapping[str, Any]) -> None:
    settings = [f"{clip(key, 40)} {clip(compact(value), 60)}" for key, value in body.items() if key not in _SHOWN]
    if settings:
        more = f" · and {len(settings) - _MAX_SETTINGS} more" if len(settings) > _MAX_SETTINGS else ""
        page.heading("SETTINGS")
        page.text(" · ".join(settings[:_MAX_SETTINGS]) + more)


def _tools(page: Page, client_request: ClientRequest | None, catalog: Catalog | None) -> None:
    """Write the list of tools. The client's declarations are used if they are available, otherwise the manifest."""
    declared = client_request.tools if client_request is not None else ()
    shown = {tool.name for tool in catalog.tools} if catalog is not None else None
    tools = declared or (catalog.tools if catalog is not None else ())
    if not tools and not (client_request is not None and client_request.hosted):
        return
    hidden = len([tool for tool in declared if shown is not None and tool.name not in shown])
    page.heading("TOOLS", f"{len(tools)}" + (f", of which {hidden} hidden from the model" if hidden else ""))
    for tool in tools:
        _tool(page, tool, hidden=shown is not None and tool.name not in shown)
    for hosted in client_request.hosted if client_request is not None else ():
        page.line(f"({clip(string(hosted.get('type')), 60)}, a tool that the backend runs)")


def _tool(page: Page, tool: Tool, *, hidden: bool) -> None:
    parameters = "input: text" if tool.kind == "custom" else signature(tool.parameters)
    marks = [mark for mark, is_so in (("strict", tool.strict), ("hidden", hidden)) if is_so]
    page.text(f"{tool.name}({parameters})" + "".join(f"   [{mark}]" for mark in marks))
    if tool.description:
        page.text(clip(tool.description, _MAX_DESCRIPTION), 3)


# -- conversation --


def _item(page: Page, item: Item, catalog: Catalog | None, speaker: str) -> str:
    """Write one item of the conversation, and return its speaker."""
    match item:
        case Message():
            _message(page, item, item.role + (f" ({clip(item.name, 64)})" if item.name else ""), catalog)
            return item.role
        case Call():
            _speaker(page, "assistant", speaker)
            _record_below(page, _call_line(item), bar=_INPUT_BAR if item.kind == "custom" else "")
            return "assistant"
        case Thought():
            _speaker(page, "assistant", speaker)
            page.text(item.text)
            return "assistant"
        case HostedItem():
            page.line(f"({clip(item.kind, 60)}, from a tool that the backend runs)")
            return speaker
        case Declaration():
            page.line(f"(declares {clip(', '.join(tool.name for tool in item.tools), 200)})")
            return speaker
        case CallOutput():
            _speaker(page, "tool", speaker)
            _record_below(page, _output_line(item.call_id, "\n".join(part_text(part) for part in item.parts)))
            return "tool"


def _record_below(page: Page, text: str, *, bar: str = "") -> None:
    head, _, shown = text.partition("\n")
    page.line(head)
    page.text(shown, 2, bar=bar)


def _speaker(page: Page, who: str, before: str = "") -> None:
    page.gap()
    if who != before:
        page.line(f"▌{who}", 0)


def _message(page: Page, message: Message, who: str, catalog: Catalog | None) -> None:
    _speaker(page, who)
    for part in message.parts:
        text = part_text(part)
        found = find_catalog(text) if message.role != "assistant" else None
        tag = catalog.tag if catalog is not None else "tool_call"
        for kind, segment in _segments(text, message.role, found, tag):
            _segment(page, kind, segment, found)


def _segment(page: Page, kind: str, segment: str, catalog: Catalog | None) -> None:
    match kind:
        case "text":
            if segment.strip():
                page.text(segment.strip("\r\n"))
        case "catalog" if catalog is not None:
            names = clip(", ".join(tool.name for tool in catalog.tools), 200)
            size = f"{plural(len(catalog.tools), 'tool')}, {plural(catalog.end - catalog.start, 'character')}"
            page.text(f"▸ the tool catalog, collapsed: {size} ({names}); the view toolsim-prompt expands it")
        case "block":
            page.text(segment, bar=_BAR)
        case _:
            page.text(segment.partition("\n")[0])
            page.text(segment.partition("\n")[2], 2)


def _segments(text: str, role: str, catalog: Catalog | None, tag: str = "tool_call") -> Iterator[tuple[str, str]]:
    """Split a message into segments: pairs of a kind ("text", "catalog", "call", "output" or "block") and the text.

    The record of a call or an output is recognized only in a message with the role that toolsim uses for these records.
    """
    if catalog is not None:
        yield from _segments(text[: catalog.start], role, None, tag)
        yield "catalog", text[catalog.start : catalog.end]
        yield from _segments(text[catalog.end :], role, None, tag)
        return
    lines: list[str] = []
    for line in text.split("\n"):
        record = _record(line, role)
        if record is None:
            lines.append(line)
            continue
        yield from _prose("\n".join(lines), role, tag)
        yield record
        lines = []
    yield from _prose("\n".join(lines), role, tag)


def _prose(text: str, role: str, tag: str) -> Iterator[tuple[str, str]]:
    """Split an assistant's text into prose and call blocks.

    The text contains call blocks if the option ``toolsim_history`` shows past calls as blocks.
    """
    if role != "assistant" or f"<{tag}>" not in text:
        yield "text", text
        return
    for piece, is_block in prose_and_blocks(text, tag):
        yield "block" if is_block else "text", piece


def _record(line: str, role: str) -> tuple[str, str] | None:
    if not line.startswith("[function_call"):
        return None
    if role == "assistant" and (call := read_call_record(line)):
        return "call", _call_line(call)
    if role == "user" and (output := read_output_record(line)):
        return "output", _output_line(*output)
    return None


def _call_line(call: Call) -> str:
    shown = call.arguments if call.kind == "custom" else pretty(call.arguments)
    return f"→ {clip(call.name, 128)}   {clip(call.call_id, 80)}\n{shown}"


def _output_line(call_id: str, output: str) -> str:
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        value = None
    # A record has only one line, so a text output is written as a JSON string, which is decoded here.
    return f"← {clip(call_id, 80)}\n{value if isinstance(value, str) else pretty(output)}"


def part_text(part: Part) -> str:
    """Return a part of a message as pages show it: text unchanged, and other parts as a description in brackets."""
    match part:
        case Text(text):
            return text
        case Image(url):
            if url.startswith("data:"):
                return f"[image: {clip(url.partition(';')[0].removeprefix('data:'), 40)}, {len(url):,} characters]"
            return f"[image: {clip(url, 200)}]"
        case Raw():
            return f"[{clip(string(part.part.get('type')) or 'part', 60)}: {clip(compact(part.part), 200)}]"


def _dropped(page: Page, report: Mapping[str, Any]) -> None:
    dropped = report.get("dropped")
    if isinstance(dropped, list) and dropped:
        page.heading("LEFT OUT", clip(", ".join(map(str, dropped[:100])), 1000))
    replaced = report.get("outputs_replaced")
    if isinstance(replaced, int) and replaced:
        page.heading("TOO LARGE", f"{plural(replaced, 'tool output')} replaced by an error")
