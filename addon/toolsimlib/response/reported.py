"""What a report learns from an answer beside its verdicts: where the blocks were, and what the client was given.

The pages show a block's place beside the model's words; the ids are those that clients send back with an output.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from toolsimlib.events import CallEnded, CallStarted, ClientEvent, Ended
from toolsimlib.plan import AnswerForm
from toolsimlib.report import Report
from toolsimlib.wire.dialect import Api

_MAX_BLOCKS = 1000
"""Blocks listed in the report: nobody reads more."""


class BlockLog:
    """Lists in ``report`` where each block of ``choice`` was in its text, and what became of it."""

    def __init__(self, report: Report, choice: int) -> None:
        self._report = report
        self._choice = choice
        self.position = 0  # How many characters of the choice's text have been taken.

    @contextmanager
    def block(self, raw: str) -> Iterator[list[str]]:
        """Add the block at the current position; what becomes of its calls is appended to the list meanwhile."""
        outcomes: list[str] = []
        report = self._report
        findings = {"repairs": report.repairs, "untagged": report.untagged, "warnings": report.warnings}
        before = {kind: len(entries) for kind, entries in findings.items()}
        yield outcomes
        start = self.position
        self.position += len(raw)
        if len(report.blocks) < _MAX_BLOCKS:
            place = {"choice": self._choice, "start": start, "end": self.position}
            found = {kind: new for kind, entries in findings.items() if (new := entries[before[kind] :])}
            report.blocks.append({**place, "verdicts": outcomes, "repairs": [], **found})


class ClientRecord:
    """Records the ids of the calls and the token counts of an answer of ``api``, in this ``form``."""

    def __init__(self, api: Api, form: AnswerForm, report: Report) -> None:
        self._api = api
        self._form = form
        self._report = report
        self._open_calls: dict[int, str] = {}  # The id of the open call, by choice.

    def take(self, event: ClientEvent) -> None:
        """Record one event, as it is emitted."""
        match event:
            case CallStarted() if not self._form.legacy_functions:
                self._open_calls[event.choice] = self._api.call_id(event.kind, event.number)
            case CallEnded(status="completed") if event.choice in self._open_calls:
                self._report.tool_call_ids.append(self._open_calls.pop(event.choice))
            case Ended(usage=usage) if usage is not None:
                counts = asdict(usage).items()
                self._report.tokens = {name.removesuffix("_tokens"): count for name, count in counts}
