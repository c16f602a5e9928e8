"""Implements the small in-memory workspace on which the scenarios operate, and its tools.

``facts`` are authoritative: a model can propose a change, but only a person can confirm it. ``draft`` contains typed
fields that the model can change. ``locks`` are paths that must not be changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolsim.eval.runtime.registry import ToolRegistry, ToolResult
from toolsim.eval.runtime.turn import Tool

WORKSPACE_ID = "ws_main"

DEFAULT_ALLOWLIST = ("state_get", "state_patch")
TOOL_PROFILES: Mapping[str, tuple[str, ...]] = {
    "default": DEFAULT_ALLOWLIST,
    "read": ("state_get",),
    "propose": (*DEFAULT_ALLOWLIST, "facts_propose"),
}
"""Named sets of tools, for ``--allowlist``."""

_ID = {"type": "string", "description": "Id of the workspace"}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


STATE_GET = Tool(
    "state_get",
    "Read the state of a workspace: facts, draft and locks.",
    _object({"workspace_id": _ID}, "workspace_id"),
)
STATE_PATCH = Tool(
    "state_patch",
    "Change one field of a workspace's draft.",
    _object(
        {
            "workspace_id": _ID,
            "path": {"type": "string", "description": "Path of the field, such as /draft/title"},
            "value": {"type": ["string", "integer"], "description": "The field's new value"},
        },
        "workspace_id",
        "path",
        "value",
    ),
)
FACTS_PROPOSE = Tool(
    "facts_propose",
    "Propose a change of a fact; a person decides.",
    _object({"workspace_id": _ID, "name": {"type": "string"}, "value": {"type": "string"}}, "name", "value"),
)
FACTS_COMMIT = Tool(
    "facts_commit",
    "Make a proposed fact authoritative.",
    _object({"name": {"type": "string"}, "confirmed_by": {"type": "string"}}, "name"),
)

_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "title": (lambda value: isinstance(value, str), "a string"),
    "body": (lambda value: isinstance(value, str), "a string"),
    "priority": (lambda value: type(value) is int and 1 <= value <= 3, "an integer: 1 (low), 2 or 3 (high)"),
    "owner": (lambda value: isinstance(value, str), "a string"),
}


@dataclass(slots=True)
class Workspace:
    """The state of the workspace in one run."""

    facts: dict[str, str] = field(default_factory=lambda: {"company": "Example Ltd", "year": "2026"})
    draft: dict[str, Any] = field(
        default_factory=lambda: {"title": "Untitled", "body": "", "priority": 1, "owner": "Ana"}
    )
    locks: list[str] = field(default_factory=lambda: ["/draft/owner"])
    ui: dict[str, Any] | None = None
    proposals: dict[str, str] = field(default_factory=dict)
    reads: int = 0

    def registry(self, *, strict: bool = False) -> ToolRegistry:
        """Return the tools of this workspace. If ``strict`` is true, state_patch is declared as strict."""
        registry = ToolRegistry()
        registry.add(STATE_GET, self.get)
        patch = Tool(STATE_PATCH.name, STATE_PATCH.description, STATE_PATCH.parameters, strict)
        registry.add(patch, self.patch)
        registry.add(FACTS_PROPOSE, self.propose)
        registry.add(FACTS_COMMIT, self.commit, model_facing=False)
        return registry

    def get(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the entire state of the workspace."""
        if (wrong := self._wrong_id(arguments)) is not None:
            return wrong
        self.reads += 1
        state: dict[str, Any] = {"facts": self.facts, "draft": self.draft, "locks": self.locks}
        if self.ui is not None:
            state["ui"] = self.ui
        return ToolResult(True, copy.deepcopy(state))

    def patch(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Change one field of the draft. Fails if the path is invalid or locked, or the value has the wrong type."""
        if (wrong := self._wrong_id(arguments)) is not None:
            return wrong
        path, value = arguments["path"], arguments["value"]
        root, _, name = path.removeprefix("/").partition("/")
        if root in ("facts", "locks", "ui"):
            return ToolResult.failed("READ_ONLY", f"{path}; only /draft can be changed")
        if root != "draft" or name not in _FIELDS:
            fields = ", ".join(f"/draft/{field}" for field in _FIELDS)
            return ToolResult.failed("PATH_NOT_FOUND", f"{path}; the fields are {fields}")
        if f"/draft/{name}" in self.locks:
            return ToolResult.failed("LOCKED", f"{path}")
        fits, expected = _FIELDS[name]
        if not fits(value):
            return ToolResult.failed("TYPE_ERROR", f"{path} is {expected}; got {value!r:.60}")
        self.draft[name] = value
        return ToolResult(True, {"path": path, "value": value})

    def propose(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Record a proposed fact without changing the facts."""
        self.proposals[arguments["name"]] = arguments["value"]
        return ToolResult(True, {"proposed": arguments["name"]}, warnings=("a person has to confirm it",))

    def commit(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Turn a proposal into a fact. Fails without the name of the person who confirmed it."""
        name = arguments["name"]
        if not arguments.get("confirmed_by"):
            return ToolResult.failed("CONFIRMATION_REQUIRED", "a person has to confirm it")
        if name not in self.proposals:
            return ToolResult.failed("NOT_PROPOSED", f"{name}")
        self.facts[name] = self.proposals.pop(name)
        return ToolResult(True, {"committed": name})

    def _wrong_id(self, arguments: Mapping[str, Any]) -> ToolResult | None:
        given = arguments.get("workspace_id")
        if given == WORKSPACE_ID:
            return None
        return ToolResult.failed("UNKNOWN_WORKSPACE", f"got {given!r:.60}; the current workspace is {WORKSPACE_ID}")
