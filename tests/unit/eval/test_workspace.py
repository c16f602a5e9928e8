"""Tests for the workspace that the scenarios use."""

from __future__ import annotations

import pytest
from toolsim.eval.workspace import WORKSPACE_ID, Workspace

ID = {"workspace_id": WORKSPACE_ID}


def test_returned_state_is_a_copy() -> None:
    """If a caller changes the returned state, the workspace does not change."""
    workspace = Workspace()
    state = workspace.get(ID).data
    state["draft"]["title"] = "Changed"
    assert workspace.draft["title"] == "Untitled"
    assert set(state) == {"facts", "draft", "locks"}
    workspace.ui = {"tab": 1}
    assert workspace.get(ID).data["ui"] == {"tab": 1}


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("/draft/title", 5, "TYPE_ERROR"),
        ("/draft/priority", "high", "TYPE_ERROR"),
        ("/draft/priority", 4, "TYPE_ERROR"),
        ("/draft/priority", True, "TYPE_ERROR"),
        ("/draft/heading", "x", "PATH_NOT_FOUND"),
        ("/title", "x", "PATH_NOT_FOUND"),
        ("/facts/year", "x", "READ_ONLY"),
        ("/draft/owner", "x", "LOCKED"),
    ],
)
def test_invalid_patch_changes_nothing(path: str, value: object, code: str) -> None:
    """A patch is refused if its path or the type of its value is incorrect, or if the field is authoritative or locked.
    The workspace remains unchanged.
    """
    workspace = Workspace()
    result = workspace.patch({**ID, "path": path, "value": value})
    assert result.code == code
    assert (workspace.draft, workspace.facts) == (Workspace().draft, Workspace().facts)


def test_valid_patch_is_applied() -> None:
    workspace = Workspace()
    assert workspace.patch({**ID, "path": "/draft/priority", "value": 3}).ok
    assert workspace.draft["priority"] == 3


def test_unknown_workspace_error_names_the_correct_id() -> None:
    """The error for an unknown workspace gives the correct ID, so that the model can use it."""
    for result in (Workspace().get({"workspace_id": "x"}), Workspace().patch({"path": "/draft/title", "value": ""})):
        assert result.code == "UNKNOWN_WORKSPACE"
        assert WORKSPACE_ID in result.errors[1]


def test_facts_change_only_with_confirmation() -> None:
    """Proposing a new value does not change a fact. Committing it requires both the proposal and a person's
    confirmation.
    """
    workspace = Workspace()
    assert workspace.propose({"name": "year", "value": "2027"}).ok
    assert workspace.facts["year"] == "2026"
    assert workspace.commit({"name": "year"}).code == "CONFIRMATION_REQUIRED"
    assert workspace.commit({"name": "company", "confirmed_by": "Ana"}).code == "NOT_PROPOSED"
    assert workspace.commit({"name": "year", "confirmed_by": "Ana"}).ok
    assert workspace.facts["year"] == "2027"


def test_commit_tool_is_never_offered() -> None:
    offered = [tool.name for tool in Workspace().registry().offered()]
    assert offered == ["state_get", "state_patch", "facts_propose"]
    assert [tool.strict for tool in Workspace().registry(strict=True).offered()] == [False, True, False]
