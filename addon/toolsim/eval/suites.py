"""Suites by name: ``scenarios``, ``questions``, ``unseen``, ``which_output``, ``bfcl:CATEGORY``."""

from __future__ import annotations

from collections.abc import Sequence

from toolsim.eval import bfcl, questions, scenarios, which_output
from toolsim.eval.bfcl_package import NotInstalled
from toolsim.eval.case import Case
from toolsim.eval.scenarios import ScenarioSettings


class UnknownSuite(ValueError):
    """No suite has this name, or its package is not installed."""


def load(name: str, settings: ScenarioSettings | None = None, selection: str = "default") -> Sequence[Case]:
    """Return all cases of a suite, in a stable order; ``selection``: which scenarios. Raises UnknownSuite.

    Also raises scenarios.UnknownScenario.
    """
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
        except (NotInstalled, ValueError) as error:
            raise UnknownSuite(f"{name}: {error}") from error
    known = "scenarios, questions, unseen, which_output and bfcl:CATEGORY"
    raise UnknownSuite(f"no such suite: {name}; there are {known}")
