"""A log of a tool loop, one JSON line per step: question, answer, call and result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Step = dict[str, Any]
"""``step`` names the kind: ``request``, ``answer``, ``error``, ``result``, ``end``."""

Trace = Callable[[Step], None]


def untraced(step: Step) -> None:
    """Discard the step."""


class JsonLines:
    """A trace that appends to a file and flushes each line, so that it survives a crash."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def __call__(self, step: Step) -> None:
        """Write one step."""
        self._file.write(json.dumps(step, ensure_ascii=False, default=str) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
