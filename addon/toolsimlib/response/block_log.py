"""Where the blocks of an answer stood, which the pages show beside the model's words."""

from __future__ import annotations

from toolsimlib.report import Report

# Blocks listed in the report: nobody reads more.
_MAX_BLOCKS = 1000


class BlockLog:
    """Lists in ``report`` where each block of ``choice`` stood in its text, and what became of it."""

    def __init__(self, report: Report, choice: int) -> None:
        self._report = report
        self._choice = choice
        self.position = 0

    def add(self, raw: str, outcomes: list[str], repairs: list[str]) -> None:
        """Add the block at the current position, and move behind it."""
        start, self.position = self.position, self.position + len(raw)
        if len(self._report.blocks) < _MAX_BLOCKS:
            place = {"choice": self._choice, "start": start, "end": self.position}
            self._report.blocks.append({**place, "verdicts": outcomes, "repairs": repairs})
