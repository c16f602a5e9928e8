"""Suites by name: ``scenarios``, ``guards``, ``bfcl:CATEGORY``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from toolsimlib.evaluation import scenarios
from toolsimlib.evaluation.case import Case
from toolsimlib.evaluation.scenarios import ScenarioSettings


class UnknownSuite(ValueError):
    """No suite has that name, or what it needs is not installed."""


def load(name: str, settings: ScenarioSettings | None = None, selection: str = "default") -> Sequence[Case]:
    """Return all cases of a suite, in an order that never changes; ``selection``: which scenarios. Raises UnknownSuite.

    Also raises scenarios.UnknownScenario.
    """
    family, _, member = name.partition(":")
    if name == "scenarios":
        return scenarios.select(selection, settings)
    if family == "bfcl" and member:
        # Its package and data are an extra of their own.
        try:
            bfcl = importlib.import_module("toolsimlib.evaluation.bfcl")
        except ImportError as missing:
            raise UnknownSuite(f"{name} needs the extra [bfcl]: {missing}") from missing
        cases: Sequence[Case] = bfcl.cases(member)
        return cases
    raise UnknownSuite(f"no such suite: {name}; there are scenarios, guards and bfcl:CATEGORY")
