"""Suites by name: ``scenarios``, ``scenarios:ID``, ``bfcl:CATEGORY``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from toolsimlib.evaluation.case import Case


class UnknownSuite(ValueError):
    """No suite has that name, or what it needs is not installed."""


def load(name: str) -> Sequence[Case]:
    """Return all cases of a suite, in an order that never changes. Raises UnknownSuite."""
    family, _, member = name.partition(":")
    if family == "bfcl" and member:
        # Its package and data are an extra of their own.
        try:
            bfcl = importlib.import_module("toolsimlib.evaluation.bfcl")
        except ImportError as missing:
            raise UnknownSuite(f"{name} needs the extra [bfcl]: {missing}") from missing
        cases: Sequence[Case] = bfcl.cases(member)
        return cases
    raise UnknownSuite(f"no such suite: {name}; there are scenarios and bfcl:CATEGORY")
