"""Records each finished exchange in a file, which contains the two sides of the exchange as two flows.

1. ``backend``: the client's original request with the backend's raw answer. This side is the addon's input. ``mitmdump
   -nr FILE`` processes it again with the ordinary hooks if the addon is loaded.
2. ``client``: the rewritten request with the answer that the client received. This side is the addon's output.

In each flow, ``flow.metadata["toolsim_capture"]`` contains its ``side``, the ``options`` that the operator had changed,
``refused`` (whether toolsim answered without querying a backend), and ``missing_bytes``, the number of bytes per side
that were not stored because the answer was too long. In the second flow, ``flow.metadata["toolsim"]`` contains the
report. A file contains no secrets, machine names or dates; times are relative to the start of the request.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import secrets
import threading
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import mitmproxy.types
from mitmproxy import command, ctx
from mitmproxy.connection import Client, Server
from mitmproxy.exceptions import CommandError, OptionsError
from mitmproxy.flow import Flow
from mitmproxy.http import Headers, HTTPFlow, Message, Response
from mitmproxy.io import FlowWriter

from toolsim.core.policy import Policy
from toolsim.proxy.addon import ToolSim
from toolsim.proxy.metadata import NOTE, REPORT, builtin_policy, policy_as_dict
from toolsim.proxy.mitmproxy12 import backup
from toolsim.proxy.options.option import PREFIX
from toolsim.proxy.options.settings import parse
from toolsim.proxy.recorder import BoundedBuffer
from toolsim.wire.apis import CHAT, api_of_path

if TYPE_CHECKING:
    from toolsim.recordings.redact import Redactor

logger = logging.getLogger(__name__)

Side = Literal["backend", "client"]

HOST = "backend.test"
"""The placeholder for the backend's host name in recordings."""
NOWHERE = ("127.0.0.1", 0)

_FAILED = "toolsim cannot record an exchange: %s"
# Maximum number of recordings that threads are writing at a time. The limit exists because the bodies of these
# recordings are kept in memory. Beyond this limit, recordings are written without a thread.
_MAX_PENDING = 16
# Prevents two threads from choosing the same file number.
_WRITING = threading.Lock()
_UNNAMED = mitmproxy.types.Path("")
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Capture:
    """Writes finished exchanges to the folder in ``toolsim_capture``.

    This addon is listed after ToolSim, so that it sees processed flows.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._policy = Policy()
        self._passing: dict[str, BoundedBuffer] = {}
        self._pending: set[asyncio.Future[Path]] = set()

    def configure(self, updated: Iterable[str]) -> None:
        """Create the folder for recordings. Raises OptionsError if the folder cannot be created."""
        if not any(name.startswith(PREFIX) for name in updated):
            return
        settings = parse(ctx.options)
        self._policy = builtin_policy(settings.policy) if settings.builtin else settings.policy
        self._folder = Path(settings.capture).expanduser() if settings.capture else None
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                raise OptionsError(f"toolsim_capture: {problem}") from problem  # type: ignore[no-untyped-call]

    def request(self, flow: HTTPFlow) -> None:
        """Store the options that applied when a request was rewritten."""
        exchange = ToolSim.exchanges.of(flow)
        # If an answer is generated in rounds, the rounds are recorded instead of the client's exchange.
        if exchange is not None and exchange.is_turn and flow.live and not exchange.is_delegated:
            policy = exchange.plan.policy if exchange.plan is not None else self._policy
            flow.metadata[NOTE] = {"options": policy_as_dict(policy), "refused": flow.response is not None}
            if (asked := exchange.round) is not None:
                flow.metadata[NOTE]["round"] = asked.note()

    def responseheaders(self, flow: HTTPFlow) -> None:
        """Copy the chunks of a response that is passed through unchanged."""
        response = flow.response
        if self._folder is not None and NOTE in flow.metadata and response is not None and response.stream is True:
            buffer = self._passing[flow.id] = BoundedBuffer()

            def copy(data: bytes) -> bytes:
                buffer.add(data)
                return data

            response.stream = copy

    def response(self, flow: HTTPFlow) -> None:
        """Write a finished exchange."""
        buffer = self._passing.pop(flow.id, None)
        if self._folder is None or not flow.live or NOTE not in flow.metadata:
            return
        if buffer is not None and flow.response is not None:
            flow.response.raw_content = buffer.content()
            if buffer.missing:
                flow.metadata[NOTE]["missing_bytes"] = {"client": buffer.missing, "backend": buffer.missing}
        self._write(flow, self._folder)

    def done(self) -> Awaitable[Any] | None:
        """Return an awaitable that finishes after all pending writes, or None if there are no pending writes.

        This method is not async, because a reload of the script calls it without awaiting.
        """
        if not self._pending:
            return None
        # The sleep adds another iteration of the event loop, in which ``_written`` logs any failed write.
        return asyncio.gather(*self._pending, asyncio.sleep(0), return_exceptions=True)

    def error(self, flow: HTTPFlow) -> None:
        """Discard an aborted exchange, which would be useless as an example."""
        self._passing.pop(flow.id, None)

    def _write(self, flow: HTTPFlow, folder: Path) -> None:
        """Write a recording in a thread, because searching a long stream for secrets takes about a second."""
        arguments = name(flow), both_sides(flow), folder
        try:
            loop = asyncio.get_running_loop() if len(self._pending) < _MAX_PENDING else None
        except RuntimeError:
            loop = None
        if loop is not None:
            future = loop.run_in_executor(None, _write_sides, *arguments)
            self._pending.add(future)
            future.add_done_callback(self._written)
            return
        try:
            _write_sides(*arguments)
        except OSError as problem:
            logger.error(_FAILED, problem)

    def _written(self, future: asyncio.Future[Path]) -> None:
        self._pending.discard(future)
        if not future.cancelled() and (problem := future.exception()) is not None:
            logger.error(_FAILED, problem)

    @command.command("toolsim.capture")  # type: ignore[untyped-decorator]
    def capture(self, flows: Sequence[Flow], folder: mitmproxy.types.Path = _UNNAMED) -> None:
        """Record finished exchanges in a folder, by default in the folder in ``toolsim_capture``."""
        target = Path(folder).expanduser() if folder else self._folder
        if target is None:
            raise CommandError("toolsim.capture: specify a folder, or set toolsim_capture.")
        ours = [flow for flow in flows if isinstance(flow, HTTPFlow) and NOTE in flow.metadata and flow.response]
        if any("side" in flow.metadata[NOTE] for flow in ours):
            raise CommandError("toolsim.capture: a flow from a recording cannot be recorded again.")
        if not ours:
            raise CommandError("toolsim.capture: the selected flows contain no finished toolsim exchange.")
        try:
            target.mkdir(parents=True, exist_ok=True)
            names = [write(flow, target).name for flow in ours]
        except OSError as problem:
            raise CommandError(f"toolsim.capture: {problem}") from problem
        logger.info("toolsim recorded %s", ", ".join(names))


def write(flow: HTTPFlow, folder: Path) -> Path:
    """Write both sides of a finished exchange to a new file in ``folder``, and return the file's path.

    Raises OSError if the file cannot be written.
    """
    return _write_sides(name(flow), both_sides(flow), folder)


def _write_sides(stem: str, both: Sequence[HTTPFlow], folder: Path) -> Path:
    data = dump(clean(both))
    with _WRITING:
        return _write_new(stem, data, folder)


def _write_new(stem: str, data: bytes, folder: Path) -> Path:
    taken = (path.stem.removeprefix(f"{stem}-") for path in folder.glob(f"{stem}-*.flow"))
    number = 1 + max((int(number) for number in taken if number.isdecimal()), default=0)
    path = folder / f"{stem}-{number:04}.flow"
    # The temporary file has an unpredictable name, so that no other user can place a link there. Its permissions let
    # only the owner read the recording. It is renamed when it is complete, because programs may be watching the folder.
    part = folder / f".{path.name}.{secrets.token_hex(8)}.part"
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    return path


def dump(flows: Iterable[HTTPFlow]) -> bytes:
    """Return the contents of a file with these flows, in mitmproxy's format."""
    buffer = io.BytesIO()
    writer = FlowWriter(buffer)  # type: ignore[no-untyped-call]
    for flow in flows:
        writer.add(flow)
    return buffer.getvalue()


def name(flow: HTTPFlow) -> str:
    """Return a file name that describes an exchange, such as ``chat-stream-two-calls``. A number is added later."""
    report: Mapping[str, Any] = flow.metadata.get(REPORT, {})
    api = api_of_path(flow.request.path) or CHAT
    client = report.get("client") or api.name
    backend = report.get("backend") or client
    over = "" if backend == client else f"-over-{backend}"
    stream = report.get("stream") or _is_stream(flow.response)
    return f"{client}{over}-{'stream' if stream else 'whole'}-{_outcome(flow, report)}"


def _outcome(flow: HTTPFlow, report: Mapping[str, Any]) -> str:
    assert flow.response is not None
    if flow.metadata[NOTE]["refused"]:
        return "refused"
    if flow.response.status_code >= 400:
        return f"status-{flow.response.status_code}"
    if not report:
        return "passed"
    if report["error"]:
        return "failed"
    count = len(report["calls"])
    return f"{_NUMBERS[count] if count < len(_NUMBERS) else count}-call{'s' if count != 1 else ''}"


def both_sides(flow: HTTPFlow) -> tuple[HTTPFlow, HTTPFlow]:
    """Return both sides of a finished exchange (see ``mitmproxy12/backup.py``), each with a note in its metadata."""
    note = flow.metadata[NOTE]
    if "side" in note:
        raise ValueError("this flow is already part of a recording")
    backend, client = backup.split(flow)
    if note["refused"]:
        backend.response = None
    missing = note.get("missing_bytes") or flow.metadata.get(REPORT, {}).get("missing_bytes") or {}
    for side, flow_of_side in (("backend", backend), ("client", client)):
        flow_of_side.metadata = {NOTE: {"side": side, **note, "missing_bytes": dict(missing)}}
    if REPORT in flow.metadata:
        client.metadata[REPORT] = flow.metadata[REPORT]
    backend.comment, backend.marked = "", ""
    backend.error = client.error = None
    return backend, client


def clean(flows: Sequence[HTTPFlow]) -> Sequence[HTTPFlow]:
    """Remove secrets, addresses, certificates and dates from both sides of an exchange, in place. Return the sides."""
    # Importing these modules is slow, so the import is delayed until the first exchange is recorded.
    from toolsim.recordings.redact import Redactor
    from toolsim.recordings.stream_text import parse_json

    redactor = Redactor()
    for flow in flows:
        for message in _messages(flow):
            redactor.learn(_header_fields(message), flow.request.path)
        redactor.learn_schemas(parse_json((flow.request.get_content(strict=False) or b"").decode("utf-8", "replace")))
    start = min(flow.request.timestamp_start for flow in flows)
    for position, flow in enumerate(flows):
        request = flow.request
        request.host, request.port = HOST, 443 if request.scheme == "https" else 80
        request.authority = ""
        request.path = redactor.path(request.path)
        for message in _messages(flow):
            _clean_message(message, redactor)
            message.timestamp_start = round(message.timestamp_start - start, 3)
            if message.timestamp_end is not None:
                message.timestamp_end = round(message.timestamp_end - start, 3)
        if "host" in request.headers:
            request.headers["host"] = HOST
        flow.metadata = redactor.value(flow.metadata)
        flow.comment = redactor.text(flow.comment)
        flow.timestamp_created = 0.0
        flow.is_replay = None
        content = [bytes([position]), request.path.encode("utf-8", "surrogateescape")]
        for message in _messages(flow):
            content += [repr(message.headers.fields).encode(), message.raw_content or b""]
        flow.id = str(UUID(bytes=sha256(b"\0".join(content)).digest()[:16], version=4))
        flow.client_conn = Client(peername=NOWHERE, sockname=NOWHERE, timestamp_start=0.0, id=f"{flow.id}-client")
        flow.server_conn = Server(address=(HOST, request.port), id=f"{flow.id}-server")
    return flows


def _clean_message(message: Message, redactor: Redactor) -> None:
    try:
        content = message.get_content(strict=True) or b""
    except ValueError:
        content = b""  # Secrets could not be found in an undecodable body, so it is dropped.
    had_content = message.raw_content is not None
    message.headers = Headers(
        (key.encode("latin-1"), value.encode("latin-1")) for key, value in redactor.headers(_header_fields(message))
    )
    message.headers.pop("content-encoding", None)
    message.trailers = None
    if had_content:
        message.raw_content = redactor.body(content, message.headers.get("content-type", ""))
    if "content-length" in message.headers:
        message.headers["content-length"] = str(len(message.raw_content or b""))


def _header_fields(message: Message) -> Iterator[tuple[str, str]]:
    for key, value in message.headers.fields:
        yield key.decode("latin-1"), value.decode("latin-1")


def _messages(flow: HTTPFlow) -> list[Message]:
    return [flow.request, flow.response] if flow.response is not None else [flow.request]


def _is_stream(response: Response | None) -> bool:
    return response is not None and response.headers.get("content-type", "").startswith("text/event-stream")
