"""The result of replaying a recorded exchange."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from toolsim.recordings.compare import Difference

MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Result:
    """The result for one file; ``note``: parts that could not be compared; ``problem``: why nothing could."""

    path: Path
    differences: tuple[Difference, ...] = ()
    note: str = ""
    problem: str = ""

    @property
    def same(self) -> bool:
        """Whether everything is as recorded."""
        return not self.differences and not self.problem

    def __str__(self) -> str:
        if self.problem:
            return f"{self.path}: {self.problem}"
        count = len(self.differences)
        lines = [f"{self.path}: {f'{count} difference{"s" * (count > 1)}' if count else 'same'}"]
        lines[0] += f" ({self.note})" if self.note else ""
        lines += [f"  {difference}" for difference in self.differences[:MAX_SHOWN]]
        lines += [f"  and {count - MAX_SHOWN} more"] if count > MAX_SHOWN else []
        return "\n".join(lines)
