"""A client's request as a backend's request, with the plan for its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from math import isfinite
from typing import Any, Literal

from toolsimlib.conversation import CallOutput, ClientRequest, Item, Message
from toolsimlib.errors import BadRequest
from toolsimlib.plan import Dialect, Plan, Policy, Tool
from toolsimlib.report import Report
from toolsimlib.request.manifest import manifest, place, remind, reminder
from toolsimlib.request.transcript import flatten
from toolsimlib.schema import SchemaError, compile_schema
from toolsimlib.wire.chat import request as chat
from toolsimlib.wire.output_format import output_format
from toolsimlib.wire.responses import request as responses
from toolsimlib.wire.tools import schema_param

_ENDINGS: Mapping[Dialect, str] = {"responses": "/responses", "chat": "/chat/completions"}

# Ids that we may have made. More digits than this we never reach, so that such an id cannot meet one of ours.
_OWN_ID = re.compile(r"(?:fc|call|ctc)_([0-9]{1,15})")
# With a history that the backend holds, numbers start anywhere in this range: see first_number.
_STORED_START = 1_000
_STORED_RANGE = 900_000

# Beyond so many items the catalogue is far above the model's last word.
_LONG_HISTORY = 8


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What goes to the backend (``body``: JSON, UTF-8; ``path`` with its query) and the ``plan`` for its answer."""

    plan: Plan
    body: bytes
    path: str


def rewrite_request(
    dialect: Dialect, path: str, body: bytes, policy: Policy, *, output_mode: str | None, report: Report
) -> Rewritten | None:
    """Rewrite a client's request for the backend that ``policy`` names; fills ``report``.

    ``dialect``: the client's; ``output_mode``: the client's own wish (a header), before the policy's. Returns None for
    a request that is not ours and passes byte for byte: no JSON object, or no tools and no history of calls for a
    backend of the same dialect. Raises BadRequest for what deserves a 400.
    """
    document = _read_json(body)
    if document is None:
        return None
    backend: Dialect = dialect if policy.backend == "auto" else policy.backend
    uses_tools = chat.uses_tools if dialect == "chat" else responses.uses_tools
    if backend == dialect and not uses_tools(document):
        return None
    report.client, report.backend = dialect, backend
    policy = _with_output_mode(policy, output_mode, report)
    try:
        read = chat.read_request if dialect == "chat" else responses.read_request
        request = read(document)
        report.dropped.extend(request.notes)
        plan = _plan(request, backend, policy, first_number(request, body))
        report.model, report.stream, report.mode = plan.model, plan.stream, policy.output_mode
        report.tools.extend(tool.name for tool in plan.tools)
        written = _write_json(_compose(request, plan, report))
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.") from None
    return Rewritten(plan, written, path if backend == dialect else _exchange_ending(path, dialect, backend))


def first_number(request: ClientRequest, body: bytes) -> int:
    """Return the number for the first call of the answer: one more than the highest in the request's own history.

    What a backend holds (``previous_response_id``, ``conversation``) cannot be seen. The number then starts at a place
    that a hash chooses: of that response's id, or of the whole request, since a conversation's id does not change.
    """
    call_ids = chat.call_ids if request.dialect == "chat" else responses.call_ids
    own = (_OWN_ID.fullmatch(each) for each in call_ids(request.body))
    number = max((int(found[1]) for found in own if found), default=0) + 1
    previous = request.body.get("previous_response_id") if request.dialect == "responses" else None
    stored = request.body.get("conversation") if request.dialect == "responses" else None
    if previous is None and stored is None:
        return number
    seed = previous.encode("utf-8", "surrogatepass") if isinstance(previous, str) else body
    return max(number, _STORED_START + int.from_bytes(sha256(seed).digest()) % _STORED_RANGE)


def _plan(request: ClientRequest, backend: Dialect, policy: Policy, number: int) -> Plan:
    for tool in request.tools:
        if tool.strict and tool.parameters is not None:
            _compile(request, tool, tool.parameters)
    offered = tuple(tool for tool in request.tools if _is_offered(request, tool, policy))
    if request.choice.mode == "required" and not offered:
        message = "'tool_choice' demands a call, but none of the tools that it allows is offered here."
        raise BadRequest(message, "function_call" if request.legacy_functions else "tool_choice", "invalid_value")
    model = request.body.get("model")
    names = {tool.name for tool in offered}
    return Plan(
        client=request.dialect,
        backend=backend,
        stream=request.stream,
        model=model if isinstance(model, str) else "",
        tools=offered,
        masked=frozenset(tool.name for tool in request.tools if tool.name not in names),
        any_strict=any(tool.strict for tool in request.tools),
        choice=request.choice,
        one_call=not (request.parallel and policy.parallel_tool_calls),
        choices=request.n,
        policy=policy,
        first_number=number,
        include_usage=request.include_usage,
        legacy_functions=request.legacy_functions,
        echo=responses.echo(request) if request.dialect == "responses" else {},
    )


def _compile(request: ClientRequest, tool: Tool, parameters: Mapping[str, Any]) -> None:
    try:
        compile_schema(parameters)
    except SchemaError as error:
        message = f"Invalid schema for function '{tool.wire_name}': {error}"
        param = schema_param(request.body, tool.name)
        raise BadRequest(message, param, "invalid_function_parameters") from error


def _is_offered(request: ClientRequest, tool: Tool, policy: Policy) -> bool:
    names = {tool.name, tool.wire_name}
    chosen = request.choice.names is None or tool.name in request.choice.names
    allowed = not policy.tool_allowlist or bool(names & policy.tool_allowlist)
    return request.choice.mode != "none" and chosen and allowed and not names & policy.tool_denylist


def _compose(request: ClientRequest, plan: Plan, report: Report) -> dict[str, Any]:
    adopt = chat.adopt if plan.backend == "chat" else responses.adopt
    items, notes = adopt(request)
    keep_hosted = plan.policy.forward_hosted_tools and plan.backend == plan.client
    if not keep_hosted:
        notes.extend(_hosted_note(each) for each in request.hosted)
    report.dropped.extend(notes)
    messages = flatten(items, plan.policy, report)
    if plan.tools:
        messages = _with_manifest(request, plan, items, messages)
    compose = chat.compose if plan.backend == "chat" else responses.compose
    # A backend that enforces a form of answer could never write a call block: the manifest asks for it instead.
    return compose(request, messages, keep_format=not plan.tools, keep_hosted=keep_hosted)


def _with_manifest(request: ClientRequest, plan: Plan, items: Iterable[Item], messages: list[Message]) -> list[Message]:
    policy = plan.policy
    text = manifest(
        plan.tools,
        plan.choice,
        sentinel=policy.sentinel,
        one_call=plan.one_call,
        answer_format=output_format(request),
    )
    messages = place(messages, text, _manifest_role(plan))
    if len(request.items) > _LONG_HISTORY or any(isinstance(item, CallOutput) for item in items):
        messages = remind(messages, reminder(plan.choice, sentinel=policy.sentinel))
    return messages


def _manifest_role(plan: Plan) -> Literal["developer", "system", "user"]:
    if plan.policy.manifest_role != "auto":
        return plan.policy.manifest_role
    return "system" if plan.backend == "chat" else "developer"


def _hosted_note(declared: Mapping[str, Any]) -> str:
    return f"tool:{str(declared['type'])[:40]}"


def _with_output_mode(policy: Policy, wish: str | None, report: Report) -> Policy:
    match wish.strip().lower() if wish else "":
        case "":
            return policy
        case "openai-json":
            return replace(policy, output_mode="openai-json")
        case "obsidian-xml":
            return replace(policy, output_mode="obsidian-xml")
        case _:
            report.dropped.append("output_mode")
            return policy


def _exchange_ending(path: str, client: Dialect, backend: Dialect) -> str:
    plain, mark, query = path.partition("?")
    plain = plain.rstrip("/").removesuffix(_ENDINGS[client])
    return f"{plain}{_ENDINGS[backend]}{mark}{query}"


def _read_json(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object in ``body``, or None: NaN, and numbers beyond Python's, are left to the backend too."""
    try:
        document = json.loads(body, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} cannot be written as JSON")
    return number


def _write_json(document: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # A lone surrogate, which JSON can hold only escaped.
        return json.dumps(document, separators=(",", ":")).encode()
