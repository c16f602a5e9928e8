"""Converts recordings to turns, which contain the client's request, its tools, and the answer.

Some recordings cannot be sent to another model: errors, truncated answers, toolsim's internal rounds, and requests that
refer to stored answers. For these, ``Unusable`` is raised with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mitmproxy.exceptions import FlowReadException
from mitmproxy.http import HTTPFlow

from toolsim.core.conversation import CallOutput, ClientRequest, Declaration
from toolsim.core.errors import BadRequest
from toolsim.core.plan import Tool
from toolsim.core.policy import Policy
from toolsim.pages.read_answer import read_answer
from toolsim.proxy.metadata import NOTE, REPORT
from toolsim.recordings.capture import clean
from toolsim.recordings.stored import recorded
from toolsim.request.rewrite import tools_on_offer
from toolsim.wire.api import Api
from toolsim.wire.apis import api_of_path
from toolsim.wire.json_codec import parse_object

Kind = Literal["call wanted", "answer wanted", "after an error"]
"""The kind of a turn: the recorded answer has calls, it has only text, or the turn follows a failed tool call."""
KINDS: tuple[Kind, ...] = ("call wanted", "answer wanted", "after an error")

# Matches the beginning of a failed tool's output. Only the Messages API has a field for failures. toolsim converts this
# field to text that the pattern matches.
_FAILED_TEXT = re.compile(r"\s*(?:\[?error\b|traceback\b|exception\b|failed\b)", re.IGNORECASE)
_FAILED_FIELDS = {"error": True, "isError": True, "is_error": True, "ok": False, "success": False}


class Unusable(Exception):
    """Raised if a file contains no turn that can be sent to a model again. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call as sent to a client."""

    name: str
    """The name under which the model sees the tool."""
    arguments: str
    """The arguments as JSON text or, for a custom tool, its input."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The content of an answer's first choice. ``error`` is the error's message, or "" if there was no error."""

    text: str = ""
    calls: tuple[MadeCall, ...] = ()
    error: str = ""
    is_invalid_call: bool = False
    """Whether the error reports that the model made an invalid call to a strict tool."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """The request and the answer in a recording."""

    path: Path
    api: Api
    endpoint: str
    """The request's path and query."""
    headers: Mapping[str, str]
    """The request's headers, but only those that the API needs."""
    body: Mapping[str, Any]
    request: ClientRequest
    tools: tuple[Tool, ...]
    reply: Reply
    report: Mapping[str, Any]
    kind: Kind

    def with_content(self, body: Mapping[str, Any], reply: Reply) -> RecordedTurn:
        """Return a copy of the turn with a different body and answer.

        Raises Unusable if the body is not a valid request.
        """
        request = _read(self.api, body)
        return replace(self, body=body, request=request, tools=tools_on_offer(request, Policy()), reply=reply)


def read_turn(path: Path, *, is_cleaned: bool = False) -> RecordedTurn:
    """Return the turn in a file. With ``is_cleaned``, remove secrets again by the current rules.

    Raises Unusable if the file is not a complete recording of a successful turn that can be sent again by itself.
    """
    try:
        backend, client = recorded(path)
        if is_cleaned:
            clean([backend, client])
    except (OSError, ValueError, FlowReadException) as problem:
        raise Unusable(f"the file is not a complete recording: {' '.join(str(problem).split())}") from problem
    note = backend.metadata[NOTE]
    report: Mapping[str, Any] = client.metadata.get(REPORT, {})
    if reason := _unusable(note, report, client):
        raise Unusable(reason)
    api = api_of_path(backend.request.path)
    body = parse_object(backend.request.get_content(strict=False) or b"")
    if api is None or body is None:
        raise Unusable("the request does not use a known API")
    request = _read(api, body)
    if request.stored_history is not None:
        raise Unusable("the request refers to a stored answer")
    if request.n > 1:
        raise Unusable("the request asks for more than one answer")
    assert client.response is not None
    tools = tools_on_offer(request, Policy())
    reply = read_reply(client.response.get_content(strict=False) or b"", tools)
    if reply.error:
        raise Unusable(f"the answer is an error: {reply.error}")
    return RecordedTurn(
        path,
        api,
        backend.request.path,
        _headers(api, backend),
        body,
        request,
        tools,
        reply,
        report,
        _kind(request, reply),
    )


def _read(api: Api, body: Mapping[str, Any]) -> ClientRequest:
    try:
        return api.read(api.expand_opaque_items({**body}))
    except BadRequest as bad:
        raise Unusable(f"the request cannot be parsed: {bad.error.message}") from bad


def read_turns(files: Iterable[Path]) -> tuple[list[RecordedTurn], dict[Path, str]]:
    """Return the turns in the files, and the reason for each file without a turn."""
    turns: list[RecordedTurn] = []
    left_out: dict[Path, str] = {}
    for file in files:
        try:
            turns.append(read_turn(file))
        except Unusable as reason:
            left_out[file] = str(reason)
    return turns, left_out


def read_reply(data: bytes, tools: Sequence[Tool]) -> Reply:
    """Return the content of an answer's first choice. ``data`` is the body of the answer, which can be a stream."""
    answer = read_answer(data)
    if not answer.known:
        return Reply(error="the answer cannot be parsed")
    names = {(tool.namespace, tool.wire_name): tool.name for tool in tools}
    calls = tuple(
        MadeCall(names.get((call.namespace, call.name), call.name), call.arguments)
        for call in answer.calls
        if call.choice == 0
    )
    if answer.error is not None:
        return Reply(answer.text(0), calls, answer.error.message, answer.error.code == "invalid_tool_call")
    return Reply(answer.text(0), calls)


def _unusable(note: Mapping[str, Any], report: Mapping[str, Any], client: HTTPFlow) -> str:
    """Return why a recorded turn cannot be sent to another model, or "" if it can."""
    round_ = note.get("round") or {}
    if round_.get("is_aside") or round_.get("number", 1) > 1 or round_.get("hosted"):
        return "the recording is an internal round of a longer turn"
    if report.get("retries"):
        return "the model was retried"
    if note.get("missing_bytes"):
        return "the answer was too long to be recorded completely"
    if note.get("refused"):
        return "toolsim refused the request"
    if client.response is None:
        return "the recording has no answer"
    if client.response.status_code >= 400:
        return f"the answer is HTTP {client.response.status_code}"
    if report.get("error"):
        return f"the answer failed: {report['error']}"
    return ""


def _headers(api: Api, flow: HTTPFlow) -> dict[str, str]:
    names = {"content-type", *(name for name in api.headers if name not in api.key_headers)}
    return {name: flow.request.headers[name] for name in sorted(names) if name in flow.request.headers}


def _kind(request: ClientRequest, reply: Reply) -> Kind:
    for item in reversed(request.items):
        if isinstance(item, Declaration):
            continue
        if not isinstance(item, CallOutput):
            break
        if is_failed(item.text):
            return "after an error"
    return "call wanted" if reply.calls else "answer wanted"


def is_failed(output: str) -> bool:
    """Return whether a tool's output reports that the tool failed."""
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        return _FAILED_TEXT.match(output) is not None
    if isinstance(value, str):
        return _FAILED_TEXT.match(value) is not None
    if not isinstance(value, dict):
        return False
    return any(name in value and bool(value[name]) == failed for name, failed in _FAILED_FIELDS.items())
