"""The ids of the calls and the token counts of a client's answer, for the report."""

from __future__ import annotations

from dataclasses import asdict

from toolsimlib.events import CallEnded, CallStarted, ClientEvent, Ended
from toolsimlib.plan import AnswerForm
from toolsimlib.report import Report
from toolsimlib.wire.dialect import Api


class Notes:
    """Records them from the events of an answer of ``api``, in this ``form``, as they are emitted."""

    def __init__(self, api: Api, form: AnswerForm, report: Report) -> None:
        self._api = api
        self._form = form
        self._report = report
        self._open_calls: dict[int, str] = {}

    def note(self, event: ClientEvent) -> None:
        """Record one event."""
        match event:
            case CallStarted() if not self._form.legacy_functions:
                self._open_calls[event.choice] = self._api.call_id(event.kind, event.number)
            case CallEnded(status="completed") if event.choice in self._open_calls:
                self._report.tool_call_ids.append(self._open_calls.pop(event.choice))
            case Ended(usage=usage) if usage is not None:
                self._report.tokens = {name.removesuffix("_tokens"): count for name, count in asdict(usage).items()}
