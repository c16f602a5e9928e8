"""Prints the lowest declared version of each direct dependency as a constraint for pip, for ``make test-lowest``."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXTRAS = ("test", "otel")


def constraints(python: str) -> list[str]:
    """Return ``name==version`` for each requirement that has a lower bound. ``python``: a version such as "3.12"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    declared = [Requirement(line) for line in lines]
    return [
        f"{each.name}=={bound.version}"
        for each in declared
        if each.marker is None or each.marker.evaluate({"python_version": python})
        for bound in each.specifier
        if bound.operator == ">="
    ]


if __name__ == "__main__":
    print(*constraints(sys.argv[1]), sep="\n")
