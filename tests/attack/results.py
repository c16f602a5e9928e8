"""The results of the attacks, for the table at the end of a run."""

from __future__ import annotations

ROWS: list[tuple[str, str, float, float, float]] = []
"""Attack, status, seconds, growth of memory in MiB, the neighbour's delay over its baseline in seconds."""
