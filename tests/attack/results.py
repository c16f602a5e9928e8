"""The results of the attacks, which are printed as a table at the end of the test run."""

from __future__ import annotations

ROWS: list[tuple[str, str, float, float, float]] = []
"""One row per attack: name, status, seconds, memory growth in MiB, and the neighbor's added delay in seconds."""
