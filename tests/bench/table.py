"""The table of results: rows with a verdict against their goals, as text, JSON and an image."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"


@dataclass(frozen=True, slots=True)
class Row:
    """A measured figure. ``value`` must not exceed ``goal``; it was calculated from ``ours`` and ``reference``.

    A figure without ``goal`` is informational. ``note``: a remark on how to interpret the figure. ``pace``: the time
    that this machine needs for any work, divided by the time that the goals assume (``machine.py``).
    """

    group: str
    name: str
    value: float
    unit: str
    goal: float | None = None
    ours: float | None = None
    reference: float | None = None
    note: str = ""
    pace: float | None = None

    @property
    def verdict(self) -> str:
        """``ok``, ``MISSED``, ``scaled`` (a time that meets its goal only if the goal is multiplied by the pace), or ""
        without a goal."""
        if self.goal is None:
            return ""
        if self.value <= self.goal:
            return "ok"
        is_time = self.unit.startswith(("ms", "µs"))
        return "scaled" if is_time and self.value <= self.goal * (self.pace or 1) else "MISSED"

    def line(self) -> str:
        goal = "" if self.goal is None else f"≤ {self.goal:g}"
        pace = "" if self.pace is None else f"{self.pace:.2f}"
        ours, reference = ("" if cost is None else f"{cost:.3g}" for cost in (self.ours, self.reference))
        return (
            f"{self.group:<9} {self.name:<58} {self.value:>9.3g} {self.unit:<9} {goal:>8} {self.verdict:<7}"
            f"{ours:>8} {reference:>10} {pace:>6}  {self.note}"
        ).rstrip()


HEADING = (
    f"{'group':<9} {'row':<58} {'value':>9} {'unit':<9} {'goal':>8} {'':<7}{'toolsim':>8} {'reference':>10} {'pace':>6}"
)


def save(rows: Sequence[Row], folder: Path) -> None:
    """Write ``bench.json`` and ``bench.svg``."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "rows": [asdict(row) | {"verdict": row.verdict} for row in rows],
    }
    (folder / "bench.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    (folder / "bench.svg").write_text(picture([row for row in rows if row.goal]))


_ROW, _LEFT, _SCALE = 22, 470, 220


def picture(rows: Sequence[Row]) -> str:
    """Return a chart with a bar for each row that has a goal.

    Each bar shows the value as a share of the goal, and a line marks the goal.
    """
    height = _ROW * (len(rows) + 2)
    width = _LEFT + 3 * _SCALE + 90
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="8" y="15" font-weight="bold">value as a share of its goal (shorter is better)</text>'
    ]
    for number, row in enumerate(rows, 1):
        assert row.goal
        share, y = row.value / row.goal, number * _ROW + 4
        colour = {"ok": "#2a7", "scaled": "#da3"}.get(row.verdict, "#c43")
        length = max(min(share, 3.0), 0.0) * _SCALE
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(f"{row.group}: {row.name}")}</text>'
            f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_ROW - 6}" fill="{colour}"/>'
            f'<text x="{_LEFT + length + 5:.1f}" y="{y + 13}">{row.value:.3g} {escape(row.unit)}</text>'
        )
    goal = _LEFT + _SCALE
    parts.append(f'<line x1="{goal}" x2="{goal}" y1="{_ROW}" y2="{height - _ROW}" stroke="black"/></svg>\n')
    return "\n".join(parts)
