"""Finds a suite by its name: ``scenarios``, ``questions``, ``unseen``, ``which_output``, or ``bfcl:CATEGORY``."""

from __future__ import annotations

from collections.abc import Sequence

from toolsim.command_line import UsageError
from toolsim.eval import bfcl, questions, scenarios, which_output
from toolsim.eval.case import Case
from toolsim.eval.scenarios import ScenarioSettings


def load(name: str, settings: ScenarioSettings | None = None, selection: str = "default") -> Sequence[Case]:
    """Return a suite's cases in a stable order. ``selection``: scenario names. Raises UsageError for unknown names."""
    family, _, member = name.partition(":")
    if name == "scenarios":
        return scenarios.select(selection, settings)
    if name in questions.FILES:
        return questions.cases(name)
    if name == which_output.SUITE:
        return which_output.cases()
    if family == "bfcl" and member:
        try:
            return bfcl.cases(member)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from error
    known = "scenarios, questions, unseen, which_output and bfcl:CATEGORY"
    raise UsageError(f"no such suite: {name}; expected one of {known}")
