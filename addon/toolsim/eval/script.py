"""Scripts of the live scenarios, and helpers for all scripts of the scripted provider.

A script is a list of replies, indexed by the number of earlier assistant messages. A reply can be a function of the
entire prompt. Like a model that reads tool results, such a function continues the script only if the prompt shows that
the tested feature works. Otherwise, the scenario fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolsim.core.errors import ApiError
from toolsim.eval.diagnosis import DONE
from toolsim.eval.scenarios import SCENARIOS, TITLE, TOO_LONG
from toolsim.eval.workspace import WORKSPACE_ID

Reply = str | ApiError | Callable[[str], str | ApiError]
Script = Sequence[Reply]


def block(name: str, arguments: Mapping[str, Any] | str) -> str:
    """Return a call in the format that models write. ``arguments`` is an object, or text that is inserted unchanged."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>{{"name":{json.dumps(name)},"arguments":{written}}}</tool_call>'


def get(**arguments: Any) -> str:
    """Return a call to state_get."""
    return block("state_get", {"workspace_id": WORKSPACE_ID, **arguments})


def patch(path: str, value: Any) -> str:
    """Return a call to state_patch."""
    return block("state_patch", {"workspace_id": WORKSPACE_ID, "path": path, "value": value})


def after(sign: str, then: str, otherwise: str = DONE) -> Reply:
    """Return a reply that depends on the prompt: ``then`` if the prompt contains ``sign``, or else ``otherwise``."""
    return lambda shown: then if sign in shown else otherwise


_TITLE = patch("/draft/title", TITLE)

SCRIPTS: Mapping[str, Script] = {
    "happy_path": (get(), _TITLE, DONE),
    "missing_workspace_id": (
        block("state_get", {}),
        after("'workspace_id' is a required property", get(workspace_id="main")),
        after("UNKNOWN_WORKSPACE", get()),
        _TITLE,
        DONE,
    ),
    "type_error_recovery": (
        patch("/draft/priority", "high"),
        after("TYPE_ERROR", patch("/draft/priority", 3)),
        DONE,
    ),
    "long_arguments_guard": (
        patch("/draft/body", TOO_LONG),
        after("ARGUMENTS_TOO_LARGE", patch("/draft/body", TOO_LONG.partition(".")[0])),
        DONE,
    ),
    # Like a real model, call a tool if the prompt contains tools.
    "chat_only": (after("state_get", get()),),
    "happy_path_parallel": (f"{get()}\n{_TITLE}", DONE),
}


def live_scripts() -> dict[str, Script]:
    """Return the scripts of the live scenarios, by the first prompt of each scenario."""
    return {scenario.prompt: SCRIPTS[scenario.id] for scenario in SCENARIOS}
