"""The wire format of MCP: the items that represent a server's tools and calls, and the declarations in a request.

In an answer, each item is a series of events of the Responses API, all of which OpenAI's SDK can parse::

    list := item.added list_tools.in_progress list_tools.(completed | failed) item.done
    call := item.added call.in_progress arguments.delta? arguments.done … call.(completed | failed) item.done
    asks := item.added item.done                                  an mcp_approval_request

If toolsim runs the MCP tools of a request, functions replace these tools, and function calls replace the MCP items in
the history. The request is then handled like any request with functions. The content of an echoed item is shown to the
model, and is trusted no more than the rest of the history.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolsim.core.conversation import Call, CallOutput, Raw, Text
from toolsim.core.errors import BadRequest
from toolsim.core.events import ClientEvent, HostedEnded, HostedProgress, HostedStarted, PassThrough
from toolsim.wire.json_fields import array, loaded, mapping, mappings, missing, string

_MAX_WORDS = 2_000
"""Maximum length, in characters, of a call's error message as shown to the model."""

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME = 64

NAMES = ("mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response")


# -- writing


def list_events(label: str, tools: Sequence[Mapping[str, Any]], error: str | None) -> list[ClientEvent]:
    """Return the events that list an MCP server's tools, or the events that report why they cannot be listed."""
    name = f"mcpl_{secrets.token_hex(24)}"
    item = {"id": name, "type": "mcp_list_tools", "server_label": label, "tools": list(tools), "error": error}
    end = "response.mcp_list_tools.completed" if error is None else "response.mcp_list_tools.failed"
    return [
        HostedStarted(name, {**item, "tools": [], "error": None}),
        HostedProgress(name, "response.mcp_list_tools.in_progress"),
        HostedProgress(name, end),
        HostedEnded(name, item),
    ]


@dataclass(frozen=True, slots=True)
class McpCall:
    """An MCP call as the client sees it. ``request`` is the ID of the approval request that led to the call."""

    id: str
    label: str
    name: str
    arguments: str
    request: str | None = None

    def begin(self) -> list[ClientEvent]:
        """Return the events that announce the call."""
        done = HostedProgress(self.id, "response.mcp_call_arguments.done", {"arguments": self.arguments})
        delta = HostedProgress(self.id, "response.mcp_call_arguments.delta", {"delta": self.arguments})
        return [
            HostedStarted(self.id, self._item(status="in_progress", arguments="")),
            HostedProgress(self.id, "response.mcp_call.in_progress"),
            *([delta] if self.arguments else []),
            done,
        ]

    def end(
        self, output: str | None, error: Mapping[str, Any] | None, found: Sequence[Mapping[str, Any]] = ()
    ) -> list[ClientEvent]:
        """Return the events for the outcome of the call. ``found`` is not used."""
        status = "completed" if error is None else "failed"
        return [
            HostedProgress(self.id, f"response.mcp_call.{status}"),
            HostedEnded(self.id, self._item(status=status, output=output, error=error)),
        ]

    def _item(self, **fields: Any) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self.id, "type": "mcp_call", "server_label": self.label, "name": self.name}
        item |= {"arguments": self.arguments, "output": None, "error": None, "approval_request_id": self.request}
        return {**item, **fields}


def shown_name(label: str, tool: str) -> str:
    """Return the name under which the model sees an MCP server's tool. If the name is already in use, the caller has to
    choose another.
    """
    return _NOT_IN_NAMES.sub("_", f"{label}__{tool}")[:_MAX_NAME] or "_"


def new_call_id() -> str:
    """Return a random ID for an MCP call."""
    return f"mcp_{secrets.token_hex(16)}"


def approval_request(name: str, label: str, tool: str, arguments: str) -> PassThrough:
    """Return the event that asks the client to approve a call."""
    item = {"id": name, "type": "mcp_approval_request", "server_label": label, "name": tool, "arguments": arguments}
    return PassThrough(item)


def error_text(error: Any) -> str:
    """Return the error of a call as plain text."""
    if not isinstance(error, dict):
        return f"Error: {str(error)[:_MAX_WORDS]}" if error else "Error: the call failed."
    text = "\n".join(string(part.get("text")) for part in mappings(error.get("content")))
    return f"Error: {(text or string(error.get('message')) or 'the call failed.')[:_MAX_WORDS]}"


# -- reading


def declared(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and the declaration of each MCP tool in a request."""
    for index, tool in enumerate(array(body.get("tools"))):
        if mapping(tool).get("type") == "mcp":
            yield f"tools[{index}]", tool


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """A decision on the approval request ``id``."""

    id: str
    approve: bool
    reason: str
    param: str
    asked: Mapping[str, Any]
    """The approval request as echoed by the client, or {} if the client did not echo it."""


def decisions(body: Mapping[str, Any]) -> list[ApprovalDecision]:
    """Find the approval decisions in a history, and return those without a call. Raises BadRequest if a decision has no
    ID.

    If there are several decisions on one approval request, the first one counts, because a call that was allowed cannot
    be refused later.
    """
    items = enumerate(array(body.get("input")))
    mcp_items = [(index, item) for index, item in items if string(mapping(item).get("type")) in NAMES]
    over = {string(item.get("approval_request_id")) for _, item in mcp_items if item["type"] == "mcp_call"}
    asked = {string(item.get("id")): item for _, item in mcp_items if item["type"] == "mcp_approval_request"}
    found: list[ApprovalDecision] = []
    for index, item in mcp_items:
        if item["type"] != "mcp_approval_response":
            continue
        name, param = string(item.get("approval_request_id")), f"input[{index}].approval_request_id"
        if not name:
            raise missing(param)
        if name in over:
            continue
        over.add(name)
        yes, reason = item.get("approve") is True, string(item.get("reason"))
        found.append(ApprovalDecision(name, yes, reason, param, asked.get(name, {})))
    return found


def listed(body: Mapping[str, Any]) -> set[str]:
    """Return the labels of the MCP servers whose tools have already been listed to the client."""
    items = mappings(body.get("input"))
    return {string(item.get("server_label")) for item in items if item.get("type") == "mcp_list_tools"}


def as_functions(
    body: Mapping[str, Any],
    functions: Sequence[Mapping[str, Any]],
    model_name: Callable[[str, str], str],
    is_ours: Callable[[str], bool],
    decided: Mapping[str, tuple[Call, CallOutput]],
) -> dict[str, Any]:
    """Return a request whose MCP tools are replaced with ``functions``, and its MCP items with function calls.

    ``model_name`` returns the model's name for a tool, given the server's label and the tool's own name. ``is_ours``
    returns whether toolsim calls the server with this label. ``decided`` maps the ID of each decided approval request
    to the outcome of the decision.
    """
    kept = [
        tool
        for tool in array(body.get("tools"))
        if mapping(tool).get("type") != "mcp" or not is_ours(string(tool.get("server_label")))
    ]
    changed = {**body, "tools": [*kept, *functions]}
    if isinstance(items := body.get("input"), list):
        left = dict(decided)
        changed["input"] = [new for item in items for new in _as_calls(item, model_name, is_ours, left)]
    return changed


def _as_calls(
    item: Any,
    model_name: Callable[[str, str], str],
    is_ours: Callable[[str], bool],
    left: dict[str, tuple[Call, CallOutput]],
) -> list[Any]:
    kind = mapping(item).get("type")
    if kind == "mcp_approval_response":
        # The outcome replaces the first decision on an approval request. Repeated decisions are dropped.
        pair = left.pop(string(item.get("approval_request_id")), None)
        return call_items(*pair) if pair is not None else []
    label = string(mapping(item).get("server_label"))
    if kind not in NAMES or not is_ours(label):
        return [item]
    if kind != "mcp_call":
        return []
    name, output = model_name(label, string(item.get("name"))), item.get("output")
    text = output if isinstance(output, str) else error_text(item.get("error"))
    call_id = string(item.get("id")) or name
    return call_items(Call(call_id, name, string(item.get("arguments"))), CallOutput(call_id, (Text(text),)))


def call_items(call: Call, output: CallOutput) -> list[dict[str, Any]]:
    """Return a call and its output as items of the Responses API."""
    if call.kind == "tool_search":
        shared = {"call_id": call.call_id, "execution": "client", "status": "completed"}
        found = [dict(part.part) for part in output.parts if isinstance(part, Raw)]
        arguments = loaded(call.arguments) or {}
        return [{"type": "tool_search_call", "arguments": arguments, **shared}, *({**item, **shared} for item in found)]
    return [
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
        {"type": "function_call_output", "call_id": call.call_id, "output": output.text},
    ]


def choice_of_functions(value: Any, names: Callable[[str], Mapping[str, str]]) -> Any:
    """Return ``value``, a ``tool_choice``, with functions in place of MCP tools.

    ``names`` accepts a server's label, and returns a mapping from the server's tool names to function names. Raises
    BadRequest if ``value`` names an MCP tool that is not in this mapping.
    """
    match value:
        case {"type": "mcp", "server_label": str(label)}:
            return _chosen(value, names(label), {"type": "allowed_tools", "mode": "required", "tools": []})
        case {"type": "allowed_tools", "tools": list(tools)}:
            inner: list[Any] = []
            for tool in tools:
                if mapping(tool).get("type") == "mcp":
                    allowed = {"type": "allowed_tools", "tools": []}
                    chosen = _chosen(tool, names(string(tool.get("server_label"))), allowed)
                    inner += chosen.get("tools", [chosen])
                else:
                    inner.append(tool)
            return {**value, "tools": inner}
    return value


def _chosen(value: Mapping[str, Any], names: Mapping[str, str], several: dict[str, Any]) -> dict[str, Any]:
    own = value.get("name")
    if isinstance(own, str):
        if own not in names:
            raise BadRequest(f"'tool_choice' names the MCP tool '{own[:64]}', which is not offered.", "tool_choice")
        return {"type": "function", "name": names[own]}
    return {**several, "tools": [{"type": "function", "name": name} for name in names.values()]}


def after_calls(value: Any) -> Any:
    """Return the ``tool_choice`` for the round that follows a call. The call has satisfied any requirement to call a
    tool.
    """
    if isinstance(value, dict) and value.get("type") in ("any", "tool", "auto"):
        return {key: each for key, each in value.items() if key != "name"} | {"type": "auto"}
    if isinstance(value, dict):
        is_limit = value.get("type") == "allowed_tools"
        return {**value, "mode": "auto"} if is_limit else "auto"
    return "auto" if value == "required" else value
