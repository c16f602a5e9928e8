"""Reads the model's prompts and outputs from the exchanges that the evaluation's proxy recorded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mitmproxy.exceptions import FlowReadException
from mitmproxy.http import HTTPFlow
from mitmproxy.io import read_flows_from_paths

from toolsim.backends.scripted.script import messages_of
from toolsim.core.errors import BadRequest
from toolsim.pages.read_answer import read_answer
from toolsim.proxy.metadata import NOTE, REPORT
from toolsim.wire.apis import api_of_path
from toolsim.wire.json_codec import parse_object

# Maximum wait for a recording, in seconds. The proxy writes recordings in a thread, after it has sent the answer.
_WAIT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """One exchange: the prompt as (role, text) pairs, the model's text, repairs, and the number of untagged calls."""

    shown: tuple[tuple[str, str], ...]
    wrote: str
    repairs: tuple[str, ...] = ()
    untagged: int = 0


class Captures:
    """Reads one proxy's recordings as they appear."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: set[str] = set()

    async def new(self, expected: int) -> list[Recorded]:
        """Return new exchanges since the last invocation, oldest first. Wait briefly for ``expected`` exchanges."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _WAIT_SECONDS
        while len(files := self._unread()) < expected and loop.time() < end:
            await asyncio.sleep(0.02)
        self._read |= {file.name for file in files}
        return [recorded for file in files for recorded in _exchanges(file)]

    def forget(self) -> None:
        """Skip all recordings so far, because they belong to a run that was abandoned."""
        self._read |= {file.name for file in self._unread()}

    def _unread(self) -> list[Path]:
        files = [file for file in self._folder.glob("*.flow") if file.name not in self._read]
        return sorted(files, key=lambda file: file.stat().st_mtime_ns)


def _exchanges(file: Path) -> list[Recorded]:
    try:
        flows = [flow for flow in read_flows_from_paths([str(file)]) if isinstance(flow, HTTPFlow)]
    except FlowReadException:
        return []
    sides: dict[str, HTTPFlow] = {flow.metadata.get(NOTE, {}).get("side", ""): flow for flow in flows}
    client, backend = sides.get("client"), sides.get("backend")
    if client is None or backend is None:
        return []
    report: dict[str, Any] = client.metadata.get(REPORT, {})
    repairs = tuple(str(repair) for repair in report.get("repairs", ()))
    return [Recorded(_shown(client), _wrote(backend), repairs, len(report.get("untagged", ())))]


def _shown(flow: HTTPFlow) -> tuple[tuple[str, str], ...]:
    api, body = api_of_path(flow.request.path), parse_object(flow.request.content or b"")
    if api is None or body is None:
        return ()
    try:
        return tuple((message.role, message.text) for message in messages_of(api.read(api.expand_opaque_items(body))))
    except BadRequest:
        return ()


def _wrote(flow: HTTPFlow) -> str:
    if flow.response is None:
        return ""
    answer = read_answer(flow.response.content or b"")
    if answer.error is not None:
        return f"[HTTP {flow.response.status_code}: {answer.error.message}]"
    return answer.text(0)
